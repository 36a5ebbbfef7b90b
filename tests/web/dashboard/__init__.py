"""The dashboard's files, and the application under another one."""
