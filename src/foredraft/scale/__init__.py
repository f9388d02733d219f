"""More than one process and more than one machine, with engines of other projects: Ray Serve and vLLM."""
