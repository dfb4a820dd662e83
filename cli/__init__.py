"""The command line: a module for every `trisweep COMMAND`, and all that parses arguments or prints to a terminal.

    main        every command by its name, and one message for whatever goes wrong
    arguments   arguments that commands share, and their way into a configuration
    plan, sweep, status, report, logs, calibrate, own_folder
                commands that are rooms: each has its `command`, and what only it needs
    wrong_arguments
                what cannot be read of a command line, in a sentence
    console     the one console, which prints names and paths as they are

Each command imports what only it needs when it runs, so that none waits for another's torch, mlflow or submitit. That
is why so many imports stand inside functions here.
"""
