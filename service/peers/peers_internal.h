/*
 * peers_internal.h - what the files of peers/ share. Nobody else but tests includes it.
 */
#ifndef ATTND_SERVICE_PEERS_PEERS_INTERNAL_H
#define ATTND_SERVICE_PEERS_PEERS_INTERNAL_H

#include "service/objects/arrival.h"
#include "service/peers/link.h"

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
    int visit; /* the connection on which it is asked for a link; -1: none */
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
    pid_t pid;
    uint8_t identity[ATTND_IDENTITY_BYTES];
    struct attnd_grant *grants;
    uint32_t grants_count;
    uint64_t done, failed, pages, bytes, bytes_per_s;
};

struct attnd_peers {
    struct attnd_service *service;
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

/** attnd_lent_take() - the pool of a grant, with a reference for the caller
 * @client: pays for its place in the heap and in the worker's table
 * @fds:    [grant->n_memory]; those that are kept are set to -1
 * Return: 0; -ATTND_E_INVALID (field pool) its shape is not @pool's; -ATTND_E_UNSUPPORTED (field
 * memory_kind) the worker maps no such memory; as attnd_shm_check_import(), attnd_memory_new(). */
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
/** attnd_transfer_free() - it has nothing any more. */
void attnd_transfer_free(struct attnd_transfer *transfer);
/** attnd_transfer_last() - to the end of the turns. */
void attnd_transfer_last(struct attnd_transfer *transfer);

#endif
