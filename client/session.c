/*
 * session.c - opening and closing, and the one descriptor between.
 *
 * A session belongs to the process that opened it. A fork is noticed by a counter that a
 * pthread_atfork() handler moves in the child, because the check stands in front of every run and
 * getpid() would be its only system call. The child has none of the mappings (MADV_DONTFORK), so
 * closing there lets go of descriptors and private memory and touches neither socket nor segments.
 */
#include "client/attnd_tables.h"
#include "client/internal.h"
#include "schemas/crash.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

uint32_t attnd_session_forks;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void forked(void)
{
    (void)attnd_take32(&attnd_session_forks, 1);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, forked);
}

static struct attnd_session *session_new(void)
{
    struct attnd_session *session = aligned_alloc(ATTND_CACHE_LINE, sizeof(*session));
    if (session == NULL)
        return NULL;
    memset(session, 0, sizeof(*session));
    session->forks = attnd_peek32(&attnd_session_forks);
    session->socket = session->notify = session->doorbell_fd = session->event = -1;
    session->submission.fd = session->completion.fd = session->account.fd = -1;
    pthread_mutex_init(&session->call_lock, NULL);
    pthread_mutex_init(&session->objects_lock, NULL);
    pthread_mutex_init(&session->launcher_lock, NULL);
    session->datagram = malloc(attnd_call_buffer_bytes());
    if (session->datagram == NULL) {
        attnd_close(session);
        return NULL;
    }
    return session;
}

int attnd_open(const struct attnd_open_args *args, struct attnd_session **session)
{
    if (session == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_SESSION, 0, 0, 0);
    *session = NULL;
    struct attnd_open_args own = {0};
    int rc = args ? attnd_args_take(&own, sizeof(own), args) : 0;
    if (rc == 0 && own.execute > ATTND_EXECUTE_SERVICE)
        rc = attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_EXECUTOR, 0, own.execute,
                               ATTND_EXECUTE_SERVICE);
    if (rc == 0 && own.reserved0 != 0)
        rc = attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_RESERVED, 0, own.reserved0, 0);
    if (rc < 0)
        return rc;

    pthread_once(&fork_once, watch_forks);
    struct attnd_session *opened = session_new();
    if (opened == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    opened->execute = own.execute;
    rc = attnd_session_connect(opened, &own);
    if (rc < 0) {
        attnd_close(opened);
        return rc;
    }
    *session = opened;
    return 0;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

void attnd_close(struct attnd_session *session)
{
    if (session == NULL)
        return;
    int owner = attnd_peek32(&attnd_session_forks) == session->forks;
    if (owner) {
        /* Not close() alone: a forked child may hold the socket open. */
        if (session->socket >= 0)
            shutdown(session->socket, SHUT_RDWR);
        attnd_crash(ATTND_CRASH_CLIENT_SHUT_DOWN);
        if (session->launcher)
            session->launcher_end(session->launcher);
        attnd_shm_unmap(&session->submission);
        attnd_shm_unmap(&session->completion);
        attnd_shm_unmap(&session->account);
        pthread_mutex_destroy(&session->call_lock);
        pthread_mutex_destroy(&session->objects_lock);
        pthread_mutex_destroy(&session->launcher_lock);
    }
    close_fd(session->event);
    close_fd(session->notify);
    close_fd(session->doorbell_fd);
    close_fd(session->socket);
    attnd_object_drop_all(session, owner);
    attnd_arena_free(&session->arena);
    free(session->results);
    free(session->datagram);
    free(session);
}

void *attnd_tables_memory(struct attnd_session *session, uint64_t *bytes)
{
    if (attnd_session_check_owner(session) < 0)
        return NULL;
    if (bytes)
        *bytes = session->tables_bytes;
    return session->tables;
}

int attnd_info(struct attnd_session *session, struct attnd_info *info)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    struct attnd_info now = session->info;
    if (attnd_observe32(&session->by_engine))
        now.executor = ATTND_EXECUTE_ENGINE;
    else if (attnd_observe32(&session->mailbox_memory))
        now.executor = ATTND_EXECUTE_SERVICE;
    return attnd_args_give(info, &now, sizeof(now));
}

int attnd_fd(const struct attnd_session *session)
{
    int rc = attnd_session_check_owner(session);
    return rc < 0 ? rc : session->event;
}
