from fairlane import App

app = App("tasks")


@app.task
def add(x: int, y: int) -> int:
    return x + y
