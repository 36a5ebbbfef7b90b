"""An executor of concurrent.futures, the threads behind it, and the calls that they send."""
