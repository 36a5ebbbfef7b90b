import asyncio

from fairlane import App, Context

app = App("task-progress")


@app.task
async def long_task(ctx: Context) -> None:
    for step in range(1, 101):
        await asyncio.sleep(1)
        ctx.progress(step, 100)


if __name__ == "__main__":
    call = long_task.with_options(id="long-task").submit()
    print(f"request {call.id}: run `fairlane status {call.id}` to see the progress")
    call.wait()
