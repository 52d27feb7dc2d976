/*
 * executor.h - who executes a session's launched runs. Engines see it, too.
 */
#ifndef ATTND_SCHEMAS_EXECUTOR_H
#define ATTND_SCHEMAS_EXECUTOR_H

enum attnd_executor {
    ATTND_EXECUTE_AUTO = 0,    /* what the service chooses */
    ATTND_EXECUTE_ENGINE = 1,  /* a kernel that the engine's stream launches */
    ATTND_EXECUTE_SERVICE = 2, /* the worker, which the stream rings */
};

#endif
