"""The report: one HTML page to review runs in a browser, as a file or served on this machine."""
