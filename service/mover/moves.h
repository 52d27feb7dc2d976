/*
 * moves.h - the bytes of a link's transfers: from the pool of a giver, into the pool of a claimer.
 *
 *   claimer's mover                          giver's mover
 *     attnd_moves_place()                      attnd_moves_give(), attnd_moves_layers()
 *     attnd_moves_pull()       PeerPull -->    attnd_moves_pulled()
 *     attnd_moves_received()   <-- fragments   attnd_moves_pump()
 *     attnd_moves_landed()
 *
 * A pull is some layers of a transfer, and comes as fragments. Its bytes are written in
 * attnd_moves_received(), and by nothing else: once a pull is over nothing of it is.
 */
#ifndef ATTND_SERVICE_MOVER_MOVES_H
#define ATTND_SERVICE_MOVER_MOVES_H

#include "service/mover/places.h"
#include "service/mover/ucx.h"

#define ATTND_MOVES_SECRET_BYTES 16u
#define ATTND_MOVES_WINDOW 8u /* fragments on their way */

/* In front of each fragment. */
struct attnd_fragment_header {
    uint8_t secret[ATTND_MOVES_SECRET_BYTES]; /* the claimer's word, over the control link */
    uint64_t transfer, number;
    uint32_t layer_begin, layer_end; /* of the pull */
    uint16_t halves, order;          /* order: enum attnd_block_order of its blocks */
    uint32_t zero;
};

struct attnd_move;
struct attnd_pull;
struct attnd_parcel;

struct attnd_moves {
    uint8_t secret[ATTND_MOVES_SECRET_BYTES];
    struct attnd_ucx *ucx;
    struct attnd_move *moves;              /* transfers: places on either side */
    struct attnd_pull *pulls, **pulls_end; /* in their order */
    struct attnd_parcel *parcels; /* [ATTND_MOVES_WINDOW] of the giver; NULL: none made yet */
    uint32_t flying;
};

void attnd_moves_init(struct attnd_moves *moves);
/** attnd_moves_end() - its struct attnd_ucx is gone already: no parcel is on its way. */
void attnd_moves_end(struct attnd_moves *moves);

/** attnd_moves_give(), attnd_moves_place() - what a grant describes is to be sent, or is where it
 * goes. @fds stay the caller's. Return: as attnd_places_new(). */
int attnd_moves_give(struct attnd_moves *moves, const Attnd__PeerGrant *grant, const int *fds);
int attnd_moves_place(struct attnd_moves *moves, const Attnd__PeerGrant *grant, const int *fds);
/** attnd_moves_layers() - so many are whole now. */
void attnd_moves_layers(struct attnd_moves *moves, uint64_t transfer, uint32_t layers_whole);
/** attnd_moves_over() - a transfer: nothing of it is sent or written from now on, and its pulls
 * end with @code. */
void attnd_moves_over(struct attnd_moves *moves, uint64_t transfer, int code);

/** attnd_moves_pull() - the claimer's: layers are on their way
 * @v_in_k: what the giver is to be told. Return: 0; -ATTND_E_PROTOCOL; -ATTND_E_NO_MEMORY. */
int attnd_moves_pull(struct attnd_moves *moves, const Attnd__PeerPull *pull, int *v_in_k);
/** attnd_moves_fail() - the giver says that it sends nothing of a transfer. */
void attnd_moves_fail(struct attnd_moves *moves, uint64_t transfer, int code);
/** attnd_moves_received() - a fragment. Return: 0, also if it is nobody's; -ATTND_E_PROTOCOL. */
int attnd_moves_received(struct attnd_moves *moves, const void *header, size_t header_bytes,
                         const uint8_t *data, size_t bytes);
/** attnd_moves_landed() - the first pull that is over, behind those before it of its transfer
 * Return: 1 and *transfer, *code, until attnd_moves_told(); 0. */
int attnd_moves_landed(const struct attnd_moves *moves, uint64_t *transfer, int *code);
void attnd_moves_told(struct attnd_moves *moves);

/** attnd_moves_pulled() - the giver's: the claimer wants layers. Return: 0; -ATTND_E_EXPIRED there
 * is no such transfer any more; -ATTND_E_PROTOCOL; -ATTND_E_NO_MEMORY. */
int attnd_moves_pulled(struct attnd_moves *moves, const Attnd__PeerPull *pull);
/** attnd_moves_pump() - send what the window lets. Return: 0; < 0 the link is no good. */
int attnd_moves_pump(struct attnd_moves *moves);
/** attnd_moves_sent() - the event of UCX. */
void attnd_moves_sent(struct attnd_moves *moves, struct attnd_ucx_message *message);

#endif
