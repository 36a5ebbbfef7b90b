"""The dashboard: a page in the browser that shows and changes what the server's queue does."""
