"""Models: texts to unit vectors (`embed`), requests to replies (`llm`), and the packaged weights of both."""
