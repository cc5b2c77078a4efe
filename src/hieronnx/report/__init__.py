"""Reports: functions from records to text or JSON values. Nothing here reads, writes or prints."""
