/*
 * peers_internal.h - what the files of peers/ share. Nobody else but tests includes it.
 */
#ifndef ATTND_SERVICE_PEERS_PEERS_INTERNAL_H
#define ATTND_SERVICE_PEERS_PEERS_INTERNAL_H

#include "service/objects/arrival.h"
#include "service/peers/link.h"
#include "service/supervise/spawn.h"

/* ---- the claimer's side ---- */

/* Memory of a pool of the other service, and the pool as this worker reads it. */
struct attnd_lent {
    struct attnd_lent *next;
    uint32_t refs; /* transfers */
    uint32_t memories_count;
    struct attnd_memory *memories[ATTND_PEER_MEMORIES_MAX]; /* referenced */
    struct attnd_heap_pool shape;
    uint64_t heap_offset_bytes, heap_bytes; /* struct attnd_heap_pool and its planes */
    struct attnd_payer payer;               /* of those */
};

enum attnd_transfer_state {
    ATTND_TRANSFER_WAITING,  /* for those before it to be answered */
    ATTND_TRANSFER_ASKED,    /* PeerTake is sent */
    ATTND_TRANSFER_GRANTED,  /* pages are to be leased here */
    ATTND_TRANSFER_MAPPING,  /* the worker maps the other pool's memory */
    ATTND_TRANSFER_BRINGING, /* pieces are copied */
    ATTND_TRANSFER_BROUGHT,  /* all are; there has to be room for the answer */
    ATTND_TRANSFER_DONE,     /* PeerDone is sent */
    ATTND_TRANSFER_OVER      /* answered, or cancelled: it gives back what it has */
};

#define ATTND_TRANSFER_PIECES 2u /* in flight, of one */

struct attnd_transfer {
    struct attnd_service *service;
    struct attnd_peer *peer;
    struct attnd_transfer *next, **link; /* of its peer's, in the order of their turns */
    struct attnd_work work;
    enum attnd_transfer_state state;
    uint64_t number; /* on the link */
    uint8_t ticket[ATTND_SECRET_BYTES];
    uint32_t pages_max;
    void *context;                       /* NULL: nobody waits for it any more */
    struct attnd_client *client;         /* NULL likewise */
    struct attnd_attachment *attachment; /* NULL likewise */
    struct attnd_pool *pool;             /* referenced */
    struct attnd_payer payer;
    uint64_t charged_bytes;
    struct attnd_lent *lent; /* referenced; NULL: not granted yet, or let go */
    uint32_t count;          /* pages */
    int32_t *pages;          /* [count], here */
    uint32_t *from;          /* [count], there */
    uint32_t leased;         /* of pages: 0 or count */
    uint32_t dropped;        /* of those: given back */
    uint32_t layers_whole;   /* there: that can be brought */
    uint32_t layers_sent, layers_landed;
    uint32_t layers_checked;       /* of those, that were the giver's when they had landed */
    int placed;                    /* the mover knows where its pages are */
    int early;                     /* answered as soon as its pages are leased here */
    int quiet;                     /* its leases are quiet ones: the session has its own */
    struct attnd_arrival *arrival; /* of those; NULL: there is none */
    uint32_t piece_layers[ATTND_TRANSFER_PIECES]; /* of those in flight, the oldest first */
    uint32_t pieces;
    int lost; /* a worker died with a piece: it may still land until the next one is up */
    uint64_t granted_ns;
};

enum attnd_peer_state { ATTND_PEER_DOWN, ATTND_PEER_CONNECTING, ATTND_PEER_UP };

struct attnd_peer {
    struct attnd_peer_link link;
    struct attnd_service *service;
    const struct attnd_peer_option *option;
    enum attnd_peer_state state;
    int far;         /* 1: of another host, by the mover */
    int closing;     /* the mover has not said yet that it writes nothing for the last link */
    uint64_t serial; /* of the mover's link, or the try for it */
    int visit;       /* the connection on which it is asked for a link; -1: none */
    struct attnd_watch *visit_watch, *timer;
    uint64_t delay_ns; /* before the next try */
    char trouble[96];  /* what the last try failed of; "": it did not */
    int known;         /* identity is that of the last link */
    uint8_t identity[ATTND_IDENTITY_BYTES];
    struct attnd_transfer *transfers, **transfers_end;
    uint32_t transfers_count;
    uint64_t next_number, asked; /* the number that is not answered; 0: none */
    struct attnd_lent *lents;
    uint64_t done, failed, pages, bytes, bytes_per_s;
};

/* ---- the giver's side ---- */

/* A ticket that is lent. */
struct attnd_grant {
    struct attnd_guest *guest;
    struct attnd_grant *next;
    uint32_t told;   /* layers that the claimer knows of */
    uint64_t number; /* of the claimer */
    struct attnd_ticket *ticket;
    uint64_t granted_ns; /* or when a layer became whole */
};

struct attnd_guest {
    struct attnd_peer_link link;
    struct attnd_service *service;
    int far;       /* 1: of another host, by the mover */
    char name[80]; /* "of pid 17", "at 10.0.0.2" */
    uint8_t identity[ATTND_IDENTITY_BYTES];
    struct attnd_grant *grants;
    uint32_t grants_count;
    uint64_t done, failed, pages, bytes, bytes_per_s;
};

/* ---- other hosts ---- */

enum attnd_far_state { ATTND_FAR_OFF, ATTND_FAR_DOWN, ATTND_FAR_STARTING, ATTND_FAR_UP };

/* What the mover says of links, for those whose they are. */
struct attnd_far_events {
    void (*linked)(struct attnd_peer *peer, const uint8_t *identity, const char *version, int *fd);
    void (*failed)(struct attnd_peer *peer, const char *why);
    int (*claims)(struct attnd_service *service, const char *name, const uint8_t *identity, int far,
                  int fd);
    void (*landed)(struct attnd_peer *peer);
};

/* attnd-mover, as the daemon sees it. */
struct attnd_far {
    struct attnd_service *service;
    const struct attnd_far_events *events;
    enum attnd_far_state state;
    struct attnd_process process;
    struct attnd_watch *control_watch, *pidfd_watch, *timer;
    uint64_t delay_ns;    /* before the next start */
    uint64_t start_ns;    /* of this one */
    uint64_t next_serial; /* of links */
    uint32_t owed;        /* links that have ended, and that it has not told the end of */
    uint64_t owed_ns;     /* since when */
    uint32_t early;       /* links that it has told the end of before it was seen here */
    int pinged, said;     /* it is to answer; why it does not start has been logged */
    uint32_t restarts;
};

struct attnd_peers {
    struct attnd_service *service;
    struct attnd_far far;
    const struct attnd_peer_events *events;
    struct attnd_link_buffers *buffers;
    struct attnd_watch *timer;   /* answers that do not fit yet are tried again */
    struct attnd_account estate; /* of transfers whose session is gone */
    struct attnd_peer peers[ATTND_PEERS_MAX];
    uint32_t peers_count;
    struct attnd_guest guests[ATTND_PEERS_MAX]; /* link down: free */
};

/** attnd_dial_start() - keep a link to @peer. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_dial_start(struct attnd_peer *peer);
/** attnd_dial_stop() - no link any more, and no try. */
void attnd_dial_stop(struct attnd_peer *peer);
/** attnd_dial_down() - the link has ended: try for the next one. */
void attnd_dial_down(struct attnd_peer *peer);
/** attnd_dial_linked() - there is a connection to @identity, of @version
 * @fd: the caller's still if it is not -1 after this */
void attnd_dial_linked(struct attnd_peer *peer, const uint8_t *identity, const char *version,
                       int *fd);
/** attnd_dial_failed() - there is none, as @why says; it is tried again. */
void attnd_dial_failed(struct attnd_peer *peer, const char *why);

/** attnd_guest_begin() - a guest's link over @fd, which is the room's from now on
 * @name: who it is. Return: 0; -ATTND_E_BUSY there are ATTND_PEERS_MAX already; -ATTND_E_NO_MEMORY.
 */
int attnd_guest_begin(struct attnd_service *service, const char *name, const uint8_t *identity,
                      int far, int fd);

/** attnd_far_start() - a mover, if services of other hosts are named or may claim here
 * Return: 0; -ATTND_E_NO_MEMORY. One that does not start is tried again, and the log says so. */
int attnd_far_start(struct attnd_service *service, const struct attnd_far_events *events);
/** attnd_far_stop() - it is ended, and nothing is written any more. */
void attnd_far_stop(struct attnd_service *service);
/** attnd_far_dial() - ask for a link to @peer. Return: NULL: attnd_dial_linked() or
 * attnd_dial_failed() follows; else why not. */
const char *attnd_far_dial(struct attnd_peer *peer);
/** attnd_far_owes() - a link by the mover has ended: it has to say that it has let go of it. */
void attnd_far_owes(struct attnd_service *service);

/* Pages of a pool, for attnd_grant_send(). */
struct attnd_grant_of {
    const struct attnd_pool *pool;
    const int32_t *pages; /* [count] */
    uint32_t count, layers_whole;
    uint64_t transfer;
    int reads;     /* they are only read */
    int host_only; /* memory of a GPU is refused */
};
/** attnd_grant_send() - with descriptors of the pool's memory. Return: 0, also if the link has
 * ended by it; < 0 with *@fault. */
int attnd_grant_send(struct attnd_peer_link *link, const struct attnd_grant_of *what,
                     struct attnd_fault *fault);
/** attnd_lent_check() - Return: 0; -ATTND_E_INVALID (field pool) the grant's shape is not @pool's.
 */
int attnd_lent_check(const struct attnd_pool *pool, const Attnd__PeerGrant *grant,
                     struct attnd_fault *fault);
/** attnd_lent_take() - the pool of a grant, with a reference for the caller
 * @client: pays for its place in the heap and in the worker's table
 * @fds:    [grant->n_memory]; those that are kept are set to -1
 * Return: 0; as attnd_lent_check(); -ATTND_E_UNSUPPORTED (field memory_kind) the worker maps no
 * such memory; as attnd_shm_check_import(), attnd_memory_new(). */
int attnd_lent_take(struct attnd_peer *peer, struct attnd_client *client,
                    const struct attnd_pool *pool, const Attnd__PeerGrant *grant, int *fds,
                    struct attnd_lent **out, struct attnd_fault *fault);
/** attnd_lent_let_go() - one reference; no piece names it any more. */
void attnd_lent_let_go(struct attnd_peer *peer, struct attnd_lent *lent);

/** attnd_peer_link_events - of a claimer's link: what a giver says (transfer.c). */
extern const struct attnd_link_events attnd_peer_link_events;
/** attnd_guest_link_events - of a giver's: what a claimer says (give.c). */
extern const struct attnd_link_events attnd_guest_link_events;

/** attnd_transfer_steps() - steps.c: the item of a transfer: as far as it goes now. Return: 1 there
 * is more to do at once; 0 it waits, or is gone. */
int attnd_transfer_steps(struct attnd_work *work);
/** attnd_transfer_go() - have it do its steps, now if there is time. It may be gone after this, and
 * so may others. */
void attnd_transfer_go(struct attnd_transfer *transfer);
/** attnd_transfer_queue() - by turns: nothing happens from within this call. */
void attnd_transfer_queue(struct attnd_transfer *transfer);
/** attnd_transfer_fail() - answer that it did not come about, and let everything go. */
void attnd_transfer_fail(struct attnd_transfer *transfer, const struct attnd_fault *fault);
/** attnd_transfer_ask() - the next one in turn, if nothing of @peer is unanswered. Transfers may
 * have failed. */
void attnd_transfer_ask(struct attnd_peer *peer);
/** attnd_transfer_answer_early() - its pages become the session's, and arrive from now on. It may
 * have failed. */
void attnd_transfer_answer_early(struct attnd_transfer *transfer);
/** attnd_transfer_check() - ask whether what has landed was the giver's until then. */
void attnd_transfer_check(struct attnd_transfer *transfer);
/** attnd_transfer_done() - ask whether the bytes may be used. The transfer may have failed. */
void attnd_transfer_done(struct attnd_transfer *transfer);
/** attnd_transfer_land() - its oldest piece is over: @code 0: the layers are here. */
void attnd_transfer_land(struct attnd_transfer *transfer, int code);
/** attnd_transfer_pull() - have the mover bring layers. Return: 0; < 0 the transfer has failed. */
int attnd_transfer_pull(struct attnd_transfer *transfer, uint32_t layer_begin, uint32_t layer_end);
/** attnd_transfers_landed() - nothing of @peer's is written any more: pieces that are under way
 * have failed. */
void attnd_transfers_landed(struct attnd_peer *peer);
/** attnd_transfer_free() - it has nothing any more. */
void attnd_transfer_free(struct attnd_transfer *transfer);
/** attnd_transfer_last() - to the end of the turns. */
void attnd_transfer_last(struct attnd_transfer *transfer);

#endif
