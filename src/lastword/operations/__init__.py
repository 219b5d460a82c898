"""What can be asked of a log, in plain data: arguments and results are what JSON has.

The command line, the admin API and the worker's process all call these, on a log that each has opened as the
operation needs it. So one and the same result is printed as tables, printed as JSON, and sent over HTTP.

A function that takes long takes `progress`, which is called with the name of a stage and numbers, and where it can
end early `stop`, which it asks between commits.
"""
