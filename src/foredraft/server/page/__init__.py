"""The status page: what GET / shows to people. Its parts are put together into one file by `status`."""
