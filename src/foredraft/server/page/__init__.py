"""The page at GET / and the API document at GET /docs. The page is written in `page/`; Vite builds `app`."""
