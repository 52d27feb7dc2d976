/*
 * moves.c - see moves.h.
 */
#include "service/mover/moves.h"

#include "schemas/crash.h"
#include "schemas/errors.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#define MOVES_MAX 2048u /* of one link */

/* A transfer. */
struct attnd_move {
    struct attnd_move *next;
    uint64_t transfer;
    struct attnd_places *places;
    int gives;
    uint32_t layers_whole; /* of one that gives */
    uint32_t flying;       /* parcels of it */
    int over;              /* freed when none is */
};

struct attnd_pull {
    struct attnd_pull *next;
    struct attnd_move *move; /* NULL: over */
    uint64_t transfer;
    uint32_t layer_begin, layer_end;
    uint32_t halves;       /* the claimer's: 0: not known yet */
    uint64_t total, count; /* fragments: all, and those that were sent or have come */
    uint8_t *seen;         /* the claimer's: a bit each */
    int over, code;
};

/* A fragment on its way. */
struct attnd_parcel {
    struct attnd_ucx_message message; /* the first member */
    struct attnd_move *move;          /* NULL: free */
    struct attnd_fragment_header header;
    struct iovec pieces[ATTND_FRAGMENT_BLOCKS];
    uint8_t *dense; /* blocks with gaps, without them; NULL: they go as they lie */
};

/* ---- transfers ---- */

static struct attnd_move *find(const struct attnd_moves *moves, uint64_t transfer)
{
    struct attnd_move *move = moves->moves;

    while (move && (move->over || move->transfer != transfer))
        move = move->next;
    return move;
}

static void sweep(struct attnd_moves *moves)
{
    for (struct attnd_move **link = &moves->moves; *link;) {
        struct attnd_move *move = *link;
        if (!move->over || move->flying > 0) {
            link = &move->next;
            continue;
        }
        *link = move->next;
        attnd_places_free(move->places);
        free(move);
    }
}

static int add(struct attnd_moves *moves, const Attnd__PeerGrant *grant, const int *fds, int gives)
{
    uint32_t count = 0;

    for (const struct attnd_move *at = moves->moves; at; at = at->next)
        count++;
    if (count >= MOVES_MAX)
        return -ATTND_E_NO_MEMORY;
    if (find(moves, grant->transfer))
        return -ATTND_E_PROTOCOL;
    struct attnd_move *move = calloc(1, sizeof(*move));
    if (!move)
        return -ATTND_E_NO_MEMORY;
    const int rc = attnd_places_new(grant, fds, !gives, &move->places);
    if (rc < 0) {
        free(move);
        return rc;
    }
    move->transfer = grant->transfer;
    move->gives = gives;
    move->layers_whole = grant->layers_whole;
    move->next = moves->moves;
    moves->moves = move;
    return 0;
}

int attnd_moves_give(struct attnd_moves *moves, const Attnd__PeerGrant *grant, const int *fds)
{
    return add(moves, grant, fds, 1);
}

int attnd_moves_place(struct attnd_moves *moves, const Attnd__PeerGrant *grant, const int *fds)
{
    return add(moves, grant, fds, 0);
}

void attnd_moves_layers(struct attnd_moves *moves, uint64_t transfer, uint32_t layers_whole)
{
    struct attnd_move *move = find(moves, transfer);

    if (move && layers_whole <= move->places->shape.layers)
        move->layers_whole = layers_whole;
}

/* ---- pulls ---- */

static struct attnd_pull **remove_pull(struct attnd_moves *moves, struct attnd_pull **link)
{
    struct attnd_pull *pull = *link;

    *link = pull->next;
    if (!*link)
        moves->pulls_end = link;
    free(pull->seen);
    free(pull);
    return link;
}

void attnd_moves_over(struct attnd_moves *moves, uint64_t transfer, int code)
{
    struct attnd_move *move = find(moves, transfer);

    if (!move)
        return;
    for (struct attnd_pull **link = &moves->pulls; *link;) {
        struct attnd_pull *pull = *link;
        if (pull->move != move) {
            link = &pull->next;
        } else if (move->gives) {
            link = remove_pull(moves, link);
        } else {
            pull->move = NULL;
            pull->code = pull->over ? pull->code : code;
            pull->over = 1;
            link = &pull->next;
        }
    }
    move->over = 1;
    sweep(moves);
}

static int add_pull(struct attnd_moves *moves, struct attnd_move *move,
                    const Attnd__PeerPull *asked, uint32_t halves)
{
    struct attnd_pull *pull = calloc(1, sizeof(*pull));

    if (!pull)
        return -ATTND_E_NO_MEMORY;
    pull->move = move;
    pull->transfer = asked->transfer;
    pull->layer_begin = asked->layer_begin;
    pull->layer_end = asked->layer_end;
    pull->halves = halves;
    pull->total = attnd_fragments(move->places, pull->layer_end - pull->layer_begin, halves);
    *moves->pulls_end = pull;
    moves->pulls_end = &pull->next;
    return 0;
}

static int check_layers(const struct attnd_move *move, const Attnd__PeerPull *pull)
{
    return pull->layer_begin < pull->layer_end && pull->layer_end <= move->places->shape.layers &&
                   move->places->count > 0
               ? 0
               : -ATTND_E_PROTOCOL;
}

int attnd_moves_pull(struct attnd_moves *moves, const Attnd__PeerPull *pull, int *v_in_k)
{
    struct attnd_move *move = find(moves, pull->transfer);

    if (!move || move->gives || check_layers(move, pull) < 0)
        return -ATTND_E_PROTOCOL;
    *v_in_k = attnd_places_v_in_k(move->places);
    return add_pull(moves, move, pull, 0);
}

int attnd_moves_pulled(struct attnd_moves *moves, const Attnd__PeerPull *pull)
{
    struct attnd_move *move = find(moves, pull->transfer);

    if (!move)
        return -ATTND_E_EXPIRED;
    if (!move->gives || check_layers(move, pull) < 0 || pull->layer_end > move->layers_whole)
        return -ATTND_E_PROTOCOL;
    return add_pull(moves, move, pull,
                    pull->has_v_in_k && pull->v_in_k && attnd_places_v_in_k(move->places) ? 1 : 2);
}

void attnd_moves_fail(struct attnd_moves *moves, uint64_t transfer, int code)
{
    for (struct attnd_pull *pull = moves->pulls; pull; pull = pull->next)
        if (pull->transfer == transfer && !pull->over) {
            pull->over = 1;
            pull->code = code;
        }
}

/* ---- the claimer's side ---- */

static struct attnd_pull *pull_of(const struct attnd_moves *moves,
                                  const struct attnd_fragment_header *header)
{
    for (struct attnd_pull *pull = moves->pulls; pull; pull = pull->next)
        if (!pull->over && pull->transfer == header->transfer &&
            pull->layer_begin == header->layer_begin && pull->layer_end == header->layer_end)
            return pull;
    return NULL;
}

/* The first fragment says how many there are. */
static int learn(struct attnd_pull *pull, uint32_t halves)
{
    if (pull->halves == halves)
        return 0;
    if (pull->halves || halves < 1 || halves > 2 ||
        (halves == 1 && !attnd_places_v_in_k(pull->move->places)))
        return -ATTND_E_PROTOCOL;
    pull->halves = halves;
    pull->total = attnd_fragments(pull->move->places, pull->layer_end - pull->layer_begin, halves);
    pull->seen = calloc(1, pull->total / 8 + 1);
    return pull->seen ? 0 : -ATTND_E_NO_MEMORY;
}

static int take_fragment(struct attnd_pull *pull, const struct attnd_fragment_header *header,
                         const uint8_t *data, size_t bytes)
{
    const struct attnd_places *places = pull->move->places;

    if (learn(pull, header->halves) < 0 || header->number >= pull->total ||
        (header->order != ATTND_BLOCK_BY_TOKEN && header->order != ATTND_BLOCK_BY_HEAD) ||
        pull->seen[header->number / 8] >> header->number % 8 & 1)
        return -ATTND_E_PROTOCOL;
    const struct attnd_fragment fragment =
        attnd_fragment_at(places, pull->layer_begin, pull->halves, header->number);
    const uint64_t block_bytes = attnd_block_bytes(places, fragment.half);
    if (bytes != fragment.count * block_bytes)
        return -ATTND_E_PROTOCOL;
    pull->seen[header->number / 8] |= (uint8_t)(1u << header->number % 8);
    for (uint32_t i = 0; i < fragment.count; i++)
        attnd_block_scatter(places, fragment.layer, fragment.half, fragment.first + i,
                            header->order, data + i * block_bytes);
    attnd_crash(ATTND_CRASH_MOVER_FRAGMENT_TAKEN);
    if (++pull->count == pull->total)
        pull->over = 1;
    return 0;
}

int attnd_moves_received(struct attnd_moves *moves, const void *bytes_of_header,
                         size_t header_bytes, const uint8_t *data, size_t bytes)
{
    struct attnd_fragment_header header;

    if (header_bytes != sizeof(header))
        return 0; /* a stranger's */
    memcpy(&header, bytes_of_header, sizeof(header));
    if (CRYPTO_memcmp(header.secret, moves->secret, sizeof(header.secret)) != 0)
        return 0;
    struct attnd_pull *pull = pull_of(moves, &header);
    return pull ? take_fragment(pull, &header, data, bytes) : 0; /* dropped meanwhile */
}

/* Of each transfer in order. */
static struct attnd_pull **first_over(const struct attnd_moves *moves)
{
    for (struct attnd_pull *const *link = &moves->pulls; *link; link = &(*link)->next) {
        const struct attnd_pull *before = moves->pulls;
        while (before != *link && before->transfer != (*link)->transfer)
            before = before->next;
        if ((*link)->over && before == *link)
            return (struct attnd_pull **)(uintptr_t)link;
    }
    return NULL;
}

int attnd_moves_landed(const struct attnd_moves *moves, uint64_t *transfer, int *code)
{
    struct attnd_pull *const *link = first_over(moves);

    if (!link)
        return 0;
    *transfer = (*link)->transfer;
    *code = (*link)->code;
    return 1;
}

void attnd_moves_told(struct attnd_moves *moves)
{
    struct attnd_pull **link = first_over(moves);

    if (link)
        (void)remove_pull(moves, link);
}

/* ---- the giver's side ---- */

static struct attnd_parcel *free_parcel(struct attnd_moves *moves)
{
    if (!moves->parcels)
        moves->parcels = calloc(ATTND_MOVES_WINDOW, sizeof(*moves->parcels));
    for (uint32_t i = 0; moves->parcels && i < ATTND_MOVES_WINDOW; i++)
        if (!moves->parcels[i].move)
            return &moves->parcels[i];
    return NULL;
}

/* Return: pieces; < 0. */
static int fill(struct attnd_parcel *parcel, const struct attnd_places *places,
                const struct attnd_fragment *fragment)
{
    const uint64_t block_bytes = attnd_block_bytes(places, fragment->half);
    const enum attnd_block_order order = attnd_block_order(places, fragment->layer, fragment->half);

    if (order != ATTND_BLOCK_STRIDED) {
        for (uint32_t i = 0; i < fragment->count; i++)
            parcel->pieces[i] = (struct iovec){
                attnd_block_at(places, fragment->layer, fragment->half, fragment->first + i),
                block_bytes};
        parcel->header.order = (uint16_t)order;
        return (int)fragment->count;
    }
    parcel->dense = malloc(fragment->count * block_bytes);
    if (!parcel->dense)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t i = 0; i < fragment->count; i++)
        attnd_block_gather(places, fragment->layer, fragment->half, fragment->first + i,
                           ATTND_BLOCK_BY_TOKEN, parcel->dense + i * block_bytes);
    parcel->header.order = ATTND_BLOCK_BY_TOKEN;
    parcel->pieces[0] = (struct iovec){parcel->dense, fragment->count * block_bytes};
    return 1;
}

static int send_next(struct attnd_moves *moves, struct attnd_parcel *parcel,
                     struct attnd_pull *pull)
{
    const struct attnd_fragment fragment =
        attnd_fragment_at(pull->move->places, pull->layer_begin, pull->halves, pull->count);

    parcel->header = (struct attnd_fragment_header){.transfer = pull->transfer,
                                                    .number = pull->count,
                                                    .layer_begin = pull->layer_begin,
                                                    .layer_end = pull->layer_end,
                                                    .halves = (uint16_t)pull->halves};
    memcpy(parcel->header.secret, moves->secret, sizeof(moves->secret));
    const int pieces = fill(parcel, pull->move->places, &fragment);
    if (pieces < 0)
        return pieces;
    parcel->move = pull->move;
    parcel->move->flying++;
    moves->flying++;
    pull->count++;
    const int rc = attnd_ucx_send(moves->ucx, &parcel->header, sizeof(parcel->header),
                                  parcel->pieces, (uint32_t)pieces, &parcel->message);
    attnd_crash(ATTND_CRASH_MOVER_FRAGMENT_SENT);
    if (rc < 0)
        attnd_moves_sent(moves, &parcel->message);
    return rc;
}

int attnd_moves_pump(struct attnd_moves *moves)
{
    int rc = 0;

    while (rc == 0 && moves->pulls && moves->pulls->move && moves->pulls->move->gives &&
           moves->flying < ATTND_MOVES_WINDOW) {
        struct attnd_parcel *parcel = free_parcel(moves);
        if (!parcel)
            return -ATTND_E_NO_MEMORY;
        rc = send_next(moves, parcel, moves->pulls);
        if (moves->pulls->count == moves->pulls->total)
            (void)remove_pull(moves, &moves->pulls);
    }
    return rc;
}

void attnd_moves_sent(struct attnd_moves *moves, struct attnd_ucx_message *message)
{
    struct attnd_parcel *parcel = (struct attnd_parcel *)(void *)message;

    free(parcel->dense);
    parcel->dense = NULL;
    parcel->move->flying--;
    parcel->move = NULL;
    moves->flying--;
    sweep(moves);
}

/* ---- the whole ---- */

void attnd_moves_init(struct attnd_moves *moves)
{
    *moves = (struct attnd_moves){0};
    moves->pulls_end = &moves->pulls;
}

void attnd_moves_end(struct attnd_moves *moves)
{
    for (uint32_t i = 0; moves->parcels && i < ATTND_MOVES_WINDOW; i++)
        free(moves->parcels[i].dense);
    free(moves->parcels);
    while (moves->pulls)
        (void)remove_pull(moves, &moves->pulls);
    for (struct attnd_move *move = moves->moves; move; move = move->next) {
        move->over = 1;
        move->flying = 0;
    }
    sweep(moves);
}
