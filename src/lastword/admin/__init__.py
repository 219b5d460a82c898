"""The admin API of a server, over HTTP: everything that the command line does, metrics and health.

app.py         the paths: requests and responses, described for OpenAPI
models.py      the requests: bodies and queries
context.py     shared state for the request handlers, and the client of the worker's process
jobs.py        long requests: progress as server-sent events, and the end of a job whose client disconnects
groups.py      consumer groups, from the broker's coordinator
scene/         a compaction as frames to watch, and a story on a separate log
scenes.py      the paths of the scene: stories, and runs of topics to watch
pages.py       the dashboard, whose files are in web/, and its login
views.py       data for the dashboard that no other path returns in one answer
page.py        the reference of the API, as a page for people
guard.py       access control: token, Host, content type, size
problems.py    errors as problem documents
exposition.py  the metrics of all processes as one text
health.py      liveness and readiness
server.py      uvicorn on its own thread

It runs in the broker's process, on its own thread and event loop. The broker's loop never waits for it.
"""
