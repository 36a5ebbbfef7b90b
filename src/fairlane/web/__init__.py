"""`fairlane serve`: a queue over HTTP."""
