"""Operations, drivers, and the two faces of the queue."""
