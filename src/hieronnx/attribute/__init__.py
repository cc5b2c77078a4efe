"""From evidence to node scopes: the strategies, and the rules that fill what they leave open."""
