/*
 * spawn.h - the worker as a process: started, asked after, ended.
 */
#ifndef ATTND_SERVICE_SUPERVISE_SPAWN_H
#define ATTND_SERVICE_SUPERVISE_SPAWN_H

#include "service/service.h"
#include "service/supervise/queue.h"

struct attnd_process {
    pid_t pid;   /* 0: none */
    int pidfd;   /* -1 where the kernel has none: the socket's end of file has to do */
    int control; /* our end of the socketpair, non-blocking */
    int signal;  /* that ended the last one; 0: none did */
};

/** attnd_spawn_beside() - a program: beside this executable if it is there, else @name, for PATH to
 * find. @path: room for it. Return: @path or @name. */
const char *attnd_spawn_beside(const char *name, char *path, size_t path_bytes);

/** attnd_spawn_program() - the worker program: what the options name, else "attnd-worker" beside
 * this executable if it is there, else that name, for PATH to find.
 * @path: room for it. Return: @path, or a string of the options', or a static one. */
const char *attnd_spawn_program(const struct attnd_options *options, char *path, size_t path_bytes);

/**
 * attnd_spawn_worker() - start a worker on the queue
 * The child inherits the queue's memfd, its end of the socketpair and the retire eventfd, nothing
 * else, with no signal blocked.
 * Return: 0 and *process; -ATTND_E_SYSTEM with errno in @fault->value.
 */
int attnd_spawn_worker(const struct attnd_options *options, const struct attnd_queue *queue,
                       struct attnd_process *process, struct attnd_fault *fault);

/**
 * attnd_spawn_child() - start a program that has one end of a socketpair, and nothing else of ours
 * @arguments: ended by NULL; the first is its name, as for attnd_spawn_beside()
 * @control:   the number of that descriptor there
 * Return: 0 and *process; < 0: -errno.
 */
int attnd_spawn_child(char *const *arguments, int control, struct attnd_process *process);

/** attnd_spawn_signal() - send a signal if it lives. */
void attnd_spawn_signal(const struct attnd_process *process, int signal);

/**
 * attnd_spawn_reap() - collect it if it has ended, waiting at most @timeout_ns
 * @text: receives "exited with 3 (its backend does not start)" or "was killed by signal 9"
 * Return: 1 it is gone (pid is 0 then, the descriptors stay); 0 it lives.
 */
int attnd_spawn_reap(struct attnd_process *process, uint64_t timeout_ns, char *text,
                     size_t text_bytes);

#endif
