"""What a test run needs: parameters, the table of back ends, the check at each test's end."""
