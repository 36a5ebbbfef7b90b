"""What the tests share: servers, waiting, the checks at every test's end."""
