/*
 * service.h - the daemon's state: its options, and one pointer to what each room keeps.
 *
 * One thread, the loop's, runs everything that is reached from here. The rooms and what each may
 * include are in README.md; a room's own header says what its structures hold.
 */
#ifndef ATTND_SERVICE_SERVICE_H
#define ATTND_SERVICE_SERVICE_H

#include "ipc/loop.h"
#include "schemas/abi.h"
#include "schemas/errors.h"
#include "service/base/histogram.h"
#include "service/base/log.h"
#include "service/base/monitor.h"
#include "service/base/work.h"

#include <stdio.h>
#include <sys/types.h>

#define ATTND_SESSIONS_MAX 64u
#define ATTND_VISITORS_MAX 64u  /* connections that are no session (yet) */
#define ATTND_POOLS_MAX 1024u   /* in the service */
#define ATTND_SECRET_BYTES 16u  /* pool tokens and page tickets */
#define ATTND_IDENTITY_BYTES 4u /* of a service; its tickets begin with them */
#define ATTND_PEERS_MAX 16u     /* that it claims from, and as many that claim from it */
#define ATTND_ALLOW_UIDS_MAX 16u
#define ATTND_QUOTA_USERS_MAX 32u /* also such as are not admitted any more */
#define ATTND_DEVICES_MAX 64u
#define ATTND_PAGE_LEASES_MAX 32767u /* of one page */
#define ATTND_HANDLES_MAX 1024u      /* per session and kind; handle h is slot h - 1 */
#define ATTND_TICKETS_MAX 4096u
#define ATTND_SESSIONS_PROCESS_MAX (ATTND_SESSIONS_MAX / 2) /* of one process */

/* Things that are counted by session, by user, and for all (objects/quota.h). */
enum attnd_quota_kind {
    ATTND_QUOTA_SESSIONS,
    ATTND_QUOTA_MEMORIES, /* entries of the worker's memory table */
    ATTND_QUOTA_POOLS,
    ATTND_QUOTA_TICKETS,
    ATTND_QUOTA_HOST,       /* bytes of host memory, made and registered */
    ATTND_QUOTA_HEAP,       /* bytes of the queue segment: plans and pools' planes */
    ATTND_QUOTA_BLOCKS,     /* of prefix trees, promised */
    ATTND_QUOTA_DAEMON,     /* bytes of the daemon's own */
    ATTND_QUOTA_HOST_CACHE, /* bytes of host memory that prefix trees have below them */
    ATTND_QUOTA_KINDS
};

/* A value in force, and whether it is "default", "file", "command line" or "service manager". */
#define ATTND_OPTION_TEXT_BYTES 256u
struct attnd_setting {
    const char *name, *origin;
    char value[112];
    char text[ATTND_OPTION_TEXT_BYTES]; /* what the file says; the option may point to it */
};
#define ATTND_SETTINGS_MAX 40u

/* Another service, from which pages may be claimed. */
struct attnd_peer_option {
    char name[32];
    char address[108]; /* its socket; or HOST:PORT of one of another host */
};

struct attnd_options {
    char socket_path[108];    /* sockaddr_un's limit */
    int socket_default;       /* nobody has named it: its directory is made, too */
    const char *backend;      /* "auto", "cpu", "cuda" */
    const char *worker_path;  /* NULL: attnd-worker beside the daemon, else on PATH */
    const char *isa;          /* NULL: best */
    const char *residency;    /* "auto", "shared", "exclusive", "elastic" */
    const char *cascade;      /* "off", "hint", "auto": equal leading pages that are read once */
    const char *fusion;       /* "off", "sm-split", "auto": both classes of tiles at once */
    const char *execute;      /* "auto", "engine", "service": launched runs */
    const char *modules;      /* directory of kernels that were not built in; NULL: none */
    struct attnd_rates rates; /* that plans are made with; zeros: the worker measures them */
    const char *inject;       /* tests: a fault that the first worker makes; NULL: none */
    enum attnd_loop_kind loop;
    uint32_t threads;          /* of the worker; 0: all processors */
    uint32_t device;           /* GPU of the worker, in the order of CUDA */
    uint32_t sms;              /* that "shared" is resident on; 0: half */
    uint32_t reserve;          /* SMs that "elastic" stays on; 0: none */
    uint32_t watchdog_s;       /* a worker that does not move for so long is killed; 0: never */
    uint64_t heap_bytes;       /* pools' planes and plans */
    uint64_t scratch_bytes;    /* partials; 0: as much as the worker thinks best */
    uint64_t memory_max_bytes; /* of the host, one session's: made for it and registered */
    uint64_t host_memory_max_bytes;   /* of all sessions, made and registered */
    uint64_t daemon_memory_max_bytes; /* of the daemon's own, for all sessions */
    uint64_t device_memory_max_bytes; /* of the GPU, made for one session; 0: all there is */
    uint32_t prefix_blocks;           /* of all prefix trees */
    uint64_t host_cache_bytes;        /* of the host, below all prefix trees; 0: none */
    uid_t allow_uids[ATTND_ALLOW_UIDS_MAX];
    uint32_t allow_uids_count;
    struct attnd_peer_option peers[ATTND_PEERS_MAX];
    uint32_t peers_count;
    char peer_listen[64];    /* HOST:PORT, where services of other hosts claim; "": nowhere */
    char peer_key[256];      /* file of the key that both have; "": none */
    char peer_interface[32]; /* of the network, for bytes; "": all */
    char metrics[108];       /* path or 127.0.0.1:PORT; "": not served */
    int trust;               /* 1: handles of engines are passed on to the driver unseen */
    enum attnd_log_level log_level;
    FILE *errors;     /* while options are read: what is wrong, instead of an end; else NULL */
    char config[256]; /* the file; "": none */
    int check_config; /* print the settings and leave */
    struct attnd_setting settings[ATTND_SETTINGS_MAX];
    uint32_t settings_count;
};

/* Counts of work: of one session, or of all that there were. */
struct attnd_work_stats {
    uint64_t runs, appends, busy_ns, kv_bytes, tiles;
    uint64_t shared_bytes; /* of K and V that runs did not read, because requests share them */
    uint64_t fused_runs;   /* of runs: both classes of tiles were done at once */
    uint64_t faults[ATTND_ERRORS_END]; /* operations that ended with this code; [0] is not used */
    struct attnd_histogram latency;    /* of runs: from taken out of the ring to done */
    struct attnd_histogram duration;   /* of runs: from begun by the worker to done */
};

struct attnd_client;        /* objects/client.h */
struct attnd_memory;        /* objects/memory.h */
struct attnd_memory_events; /* objects/memory.h */
struct attnd_tier_events;   /* prefix/tier.h */
struct attnd_peers;         /* peers/peers.h */
struct attnd_pool;          /* objects/pool.h */
struct attnd_ticket_events; /* objects/ticket.h */
struct attnd_tickets;       /* objects/ticket.c */
struct attnd_control;       /* rpc/call.c: message buffers */
struct attnd_queue;         /* supervise/queue.h: the segment that daemon and worker share */
struct attnd_supervisor;    /* supervise/supervise.h: the worker process */
struct attnd_device;        /* supervise/device.h: the driver of the GPU whose memory is made */
struct attnd_prepared_runs; /* prepared/prepared.h */
struct attnd_scheduler;     /* sched/scheduler.h */

struct attnd_service {
    struct attnd_options options;
    struct attnd_loop *loop;
    int listen_fd;
    struct attnd_watch *listen_watch, *listen_timer;
    struct attnd_watch *heap_timer; /* when the heap goes back, if nobody is there then */
    uint64_t start_ns;
    struct attnd_client *clients[ATTND_SESSIONS_MAX]; /* sessions: MAPPING, OPEN, DYING */
    struct attnd_client *visitors;                    /* HELLO: no session (yet) */
    uint32_t visitors_count;
    struct attnd_client *drained; /* freed at the end of a sweep, when no callback can name them */
    uint32_t next_session_id;
    struct attnd_memory *memories[ATTND_MEMORIES_MAX];
    const struct attnd_memory_events *memory_events;
    const struct attnd_tier_events *tier_events;
    uint64_t used[ATTND_QUOTA_KINDS]; /* by all; and by each user that has something */
    uint64_t user_used[ATTND_QUOTA_USERS_MAX][ATTND_QUOTA_KINDS];
    uid_t quota_uids[ATTND_QUOTA_USERS_MAX];
    struct attnd_pool *pools;
    uint32_t pools_count;
    uint32_t next_pool_id;
    uint32_t prefix_blocks_used; /* touched, of options.prefix_blocks */
    struct attnd_tickets *tickets;
    const struct attnd_ticket_events *ticket_events;
    uint8_t identity[ATTND_IDENTITY_BYTES]; /* random, of this start; its tickets begin with it */
    struct attnd_peers *peers;              /* NULL: not started */
    struct attnd_control *control;
    struct attnd_queue *queue;
    struct attnd_supervisor *supervisor;
    struct attnd_prepared_runs *prepared_runs;
    struct attnd_scheduler *scheduler;
    struct attnd_device *device; /* NULL: the worker's backend has no memory of its own */
    struct attnd_memory *wake;   /* of the wake word; NULL: nobody has asked for it yet */
    struct attnd_work_stats totals;
    struct attnd_monitor monitor;
    struct attnd_works works; /* what is done for clients in pieces */
    int stopping;
};

#endif
