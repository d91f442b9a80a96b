"""From LangChain's callbacks to scored traces: handler, recorder, pipeline."""
