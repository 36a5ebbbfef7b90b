from urllib.request import urlopen

from fairlane import App

app = App("default")


@app.task
def count_words_at_url(url: str) -> int:
    return len(urlopen(url).read().split())  # noqa: S310


if __name__ == "__main__":
    print(count_words_at_url.submit("http://nvie.com").result())
