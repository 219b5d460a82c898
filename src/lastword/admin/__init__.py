"""The admin API of a server, over HTTP: everything that the command line does, metrics and health.

app.py         the paths: what is asked, what is answered, in the words of OpenAPI
models.py      what requests may say
context.py     who does it: this process for what is short, the worker's for what is heavy
jobs.py        requests that take long: progress as server-sent events, and what happens when the asker goes away
connectors.py  sources
groups.py      consumer groups, from the broker's coordinator
scenes.py      the scene: stories, and runs of topics to watch
pages.py       the dashboard, whose files are in web/, and its login
views.py       what the dashboard shows that no other path tells in one answer
page.py        what the API offers, as a page for people
guard.py       who may ask: token, Host, content type, size
problems.py    errors as problem documents
exposition.py  the metrics of all processes as one text
health.py      alive, and ready
server.py      uvicorn on a thread of its own

It lives in the broker's process, on a thread and an event loop of its own; the broker's loop never waits for it.
"""
