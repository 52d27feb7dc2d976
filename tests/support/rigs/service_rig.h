/*
 * service_rig.h - the daemon in a process of its own, spoken to in raw messages, with a data plane
 * that is only a stub. The state of a test is the kind of loop that its daemon runs.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_SERVICE_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_SERVICE_RIG_H

#include "ipc/fdpass.h"
#include "schemas/attnd.pb-c.h"
#include "service/daemon/run.h"

#define REST_TRIES 10000 /* of a millisecond each */

struct session {
    int socket;
    int fds[ATTND_FDS_MAX], fd_count;
    uint64_t submission_bytes;
};

struct service_rig {
    char directory[32];
    char notify_path[64];
    int notify;
    struct attnd_options options;
    pid_t daemon;
};
extern struct service_rig service_rig;

pid_t service_rig_start_daemon(void);
void service_rig_expect_notice(const char *notice);
int service_rig_join(pid_t pid);
int service_rig_setup(void **state);
void service_rig_start(void);
void service_rig_stop(void);
int service_rig_teardown(void **state);
int service_rig_dial(void);
/* What came back; NULL: the connection ended. Its descriptors are in @fds. */
Attnd__Reply *service_rig_receive(int socket, int *fds, int *fd_count);
Attnd__Reply *service_rig_ask_fds(int socket, Attnd__Request *request, int *fds, int *fd_count);
/* For calls whose answer is a code; descriptors are closed. */
int service_rig_ask(int socket, Attnd__Request *request, struct attnd_fault *fault);
int service_rig_say_hello(struct session *session, uint32_t version, uint32_t entries,
                          uint64_t arena_bytes, struct attnd_fault *fault);
int service_rig_say_mapped(int socket);
struct session service_rig_open_session(void);
void service_rig_close_session(struct session *session);
int service_rig_create_pool(int socket);
Attnd__Reply *service_rig_ask_status(void);
size_t service_rig_count_sessions(void);
void service_rig_expect_sessions(size_t count);
size_t service_rig_count_fds(pid_t pid);
/*
 * The daemon, or a thread that it made for that, closes descriptors a moment after we know that it
 * will: what it has when all its threads sleep. Two looks, because the first may miss a thread that
 * was just made; a thread that came and went between them has changed the count.
 */
size_t service_rig_fds_at_rest(void);
/* However long it takes to come back to @count; what is leaked stays. */
void service_rig_expect_fds(size_t count);

#endif
