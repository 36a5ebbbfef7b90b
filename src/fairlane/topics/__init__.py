"""Topics in the API: `from fairlane.topics import Topic`."""

from fairlane.operations.topics import Subscriber, TopicMessage, TopicState
from fairlane.topics.awaited import AsyncTopic
from fairlane.topics.blocking import Topic

__all__ = ["AsyncTopic", "Subscriber", "Topic", "TopicMessage", "TopicState"]
