"""Reports: functions from results to text, Markdown and CSV. Nothing here reads, writes or prints."""
