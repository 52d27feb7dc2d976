/*
 * transfer.c - a claim of another service's ticket, from asked to given.
 *
 *   WAITING   until those before it on its link are answered: one PeerTake is unanswered at a time
 *   ASKED     PeerTake is sent
 *   GRANTED   the ticket is lent to us; pages are to be leased here
 *   MAPPING   the worker maps the other pool's memory
 *   BRINGING  pieces of some layers are copied
 *   BROUGHT   all bytes are here; there has to be room for the answer
 *   DONE      PeerDone is sent: only the giver can say that its pages were its own until now
 *   OVER      answered or cancelled: it gives back what it still has
 *
 * The pages belong to the transfer alone until the answer: no session can name them, and they are
 * not free. If it fails they stay its own while a piece of it is in flight, so bytes that come late
 * come to nobody. A piece that a dead worker left is done again by the next one; if nobody wants
 * the pages any more, they stay until the next worker is up, because a GPU's copy engines may go on
 * a little after their process.
 */
#include "persistent/bring.h"
#include "schemas/clock.h"
#include "schemas/crash.h"
#include "service/peers/peers.h"
#include "service/peers/peers_internal.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define TRANSFERS_MAX 1024u /* of one peer */

/* ---- its place ---- */

static void enlist(struct attnd_peer *peer, struct attnd_transfer *transfer)
{
    transfer->next = NULL;
    transfer->link = peer->transfers_end;
    *peer->transfers_end = transfer;
    peer->transfers_end = &transfer->next;
}

static void unlist(struct attnd_transfer *transfer)
{
    *transfer->link = transfer->next;
    if (transfer->next)
        transfer->next->link = transfer->link;
    else
        transfer->peer->transfers_end = transfer->link;
}

void attnd_transfer_last(struct attnd_transfer *transfer)
{
    unlist(transfer);
    enlist(transfer->peer, transfer);
}

static struct attnd_transfer *find(const struct attnd_peer *peer, uint64_t number)
{
    for (struct attnd_transfer *at = peer->transfers; at; at = at->next)
        if (at->number == number && at->state != ATTND_TRANSFER_WAITING)
            return at;
    return NULL;
}

void attnd_transfer_free(struct attnd_transfer *transfer)
{
    unlist(transfer);
    transfer->peer->transfers_count--;
    attnd_pool_unref(transfer->service, transfer->pool);
    attnd_quota_refund(transfer->service, transfer->payer, transfer->charged_bytes);
    free(transfer->pages);
    free(transfer->from);
    free(transfer);
}

/* Its session pays for its steps; what is left of a session that is gone is nobody's. */
static struct attnd_account *account_of(const struct attnd_transfer *transfer)
{
    return transfer->client ? &transfer->client->account : &transfer->service->peers->estate;
}

void attnd_transfer_go(struct attnd_transfer *transfer)
{
    attnd_work_start(&transfer->service->works, account_of(transfer), &transfer->work);
}

void attnd_transfer_queue(struct attnd_transfer *transfer)
{
    attnd_work_queue(&transfer->service->works, account_of(transfer), &transfer->work);
}

/* ---- what is said to the giver ---- */

static int tell_number(struct attnd_peer *peer, uint64_t number,
                       Attnd__PeerMessage__MessageCase what)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerDone done = ATTND__PEER_DONE__INIT;
    Attnd__PeerDrop drop = ATTND__PEER_DROP__INIT;

    done.transfer = drop.transfer = number;
    message.message_case = what;
    if (what == ATTND__PEER_MESSAGE__MESSAGE_DONE)
        message.done = &done;
    else
        message.drop = &drop;
    return attnd_link_send(&peer->link, &message, NULL, 0);
}

void attnd_transfer_ask(struct attnd_peer *peer)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerTake take = ATTND__PEER_TAKE__INIT;
    struct attnd_transfer *next = peer->transfers;

    if (peer->asked || !attnd_link_is_up(&peer->link))
        return;
    while (next && next->state != ATTND_TRANSFER_WAITING)
        next = next->next;
    if (!next)
        return;
    take.transfer = next->number;
    take.ticket = (ProtobufCBinaryData){.len = ATTND_SECRET_BYTES, .data = next->ticket};
    take.pages_max = next->pages_max;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_TAKE;
    message.take = &take;
    peer->asked = next->number;
    next->state = ATTND_TRANSFER_ASKED;
    (void)attnd_link_send(&peer->link, &message, NULL, 0); /* or the link is down, and it fails */
}

void attnd_transfer_done(struct attnd_transfer *transfer)
{
    transfer->state = ATTND_TRANSFER_DONE;
    (void)tell_number(transfer->peer, transfer->number, ATTND__PEER_MESSAGE__MESSAGE_DONE);
}

int attnd_transfer_pull(struct attnd_transfer *transfer, uint32_t layer_begin, uint32_t layer_end)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerPull pull = ATTND__PEER_PULL__INIT;

    pull.transfer = transfer->number;
    pull.layer_begin = layer_begin;
    pull.layer_end = layer_end;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_PULL;
    message.pull = &pull;
    return attnd_link_send(&transfer->peer->link, &message, NULL, 0);
}

void attnd_transfer_check(struct attnd_transfer *transfer)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerCheck check = ATTND__PEER_CHECK__INIT;

    check.transfer = transfer->number;
    check.layers = transfer->layers_landed;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_CHECK;
    message.check = &check;
    (void)attnd_link_send(&transfer->peer->link, &message, NULL, 0);
}

/* ---- its end ---- */

static void forget(struct attnd_transfer *transfer)
{
    transfer->context = NULL;
    transfer->client = NULL;
    transfer->attachment = NULL;
}

/* What arrives is whole, or, with @fault, will not be. */
static void end_arrival(struct attnd_transfer *transfer, const struct attnd_fault *fault)
{
    if (!transfer->arrival)
        return;
    attnd_arrival_end(transfer->arrival, fault);
    transfer->arrival = NULL;
    transfer->service->peers->events->arrived(transfer->service);
}

/* Nobody waits for it from now on. The giver is told, if it has lent something or will. */
static void let_go(struct attnd_transfer *transfer)
{
    const enum attnd_transfer_state was = transfer->state;

    attnd_work_stop(&transfer->work);
    forget(transfer);
    transfer->state = ATTND_TRANSFER_OVER;
    transfer->peer->failed++;
    if (was != ATTND_TRANSFER_WAITING && was != ATTND_TRANSFER_OVER)
        (void)tell_number(transfer->peer, transfer->number, ATTND__PEER_MESSAGE__MESSAGE_DROP);
}

void attnd_transfer_fail(struct attnd_transfer *transfer, const struct attnd_fault *fault)
{
    const struct attnd_peer_events *events = transfer->service->peers->events;
    void *context = transfer->context;

    if (transfer->state == ATTND_TRANSFER_OVER)
        return;
    let_go(transfer);
    if (context)
        events->ended(context, NULL, 0, fault);
    end_arrival(transfer, fault);
    attnd_transfer_queue(transfer); /* not now: whoever has failed it may look at it still */
}

void attnd_transfer_cancel(struct attnd_transfer *transfer)
{
    let_go(transfer);
    attnd_transfer_go(transfer);
}

/* Its pages are the session's. */
static void answer(struct attnd_transfer *transfer)
{
    static const struct attnd_fault none = {0};

    transfer->service->peers->events->ended(transfer->context, transfer->pages, transfer->count,
                                            &none);
    forget(transfer);
}

void attnd_transfer_answer_early(struct attnd_transfer *transfer)
{
    struct attnd_fault fault = {0};
    struct attnd_pool *pool = transfer->pool;
    int rc = attnd_lease_quiet_room(transfer->service, pool, &fault);

    if (rc == 0)
        rc = attnd_arrival_begin(transfer->client, transfer->attachment, transfer->pages,
                                 transfer->count, &transfer->arrival, &fault);
    if (rc < 0) {
        attnd_transfer_fail(transfer, &fault);
        return;
    }
    attnd_lease_take(transfer->attachment, transfer->pages, transfer->count);
    rc = attnd_lease_quiet_add(pool, transfer->pages, transfer->count, NULL);
    assert(rc == 0); /* they have one lease each */
    transfer->quiet = 1;
    answer(transfer);
}

/* The bytes are the session's. */
static void succeed(struct attnd_transfer *transfer)
{
    struct attnd_peer *peer = transfer->peer;
    const uint64_t took_ns = attnd_clock_ns() - transfer->granted_ns;
    const uint64_t bytes =
        transfer->count * attnd_bring_bytes(&transfer->pool->shape, transfer->pool->shape.layers);

    attnd_crash(ATTND_CRASH_DAEMON_PEER_GIVEN);
    transfer->state = ATTND_TRANSFER_OVER;
    peer->done++;
    peer->pages += transfer->count;
    peer->bytes_per_s = took_ns ? (uint64_t)((double)bytes * 1e9 / (double)took_ns) : 0;
    if (!transfer->early) {
        attnd_lease_take(transfer->attachment, transfer->pages, transfer->count);
        transfer->leased = 0;
        answer(transfer);
    }
    end_arrival(transfer, NULL);
    attnd_transfer_go(transfer);
}

/* ---- what the giver says ---- */

static int charge(struct attnd_transfer *transfer, uint32_t count, struct attnd_fault *fault)
{
    const uint64_t bytes = count * (sizeof(*transfer->pages) + sizeof(*transfer->from));
    int rc = attnd_quota_charge(transfer->client, bytes, fault);

    if (rc < 0)
        return rc;
    transfer->charged_bytes += bytes;
    transfer->pages = malloc(count * sizeof(*transfer->pages) + 1);
    transfer->from = malloc(count * sizeof(*transfer->from) + 1);
    return transfer->pages && transfer->from
               ? 0
               : attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
}

static int take_grant(struct attnd_transfer *transfer, const Attnd__PeerGrant *grant, int *fds)
{
    struct attnd_fault fault = {0};
    const uint32_t count = (uint32_t)grant->n_page;
    int rc = transfer->peer->far ? attnd_lent_check(transfer->pool, grant, &fault)
                                 : attnd_lent_take(transfer->peer, transfer->client, transfer->pool,
                                                   grant, fds, &transfer->lent, &fault);

    if (rc == 0)
        rc = charge(transfer, count, &fault);
    if (rc < 0) {
        attnd_transfer_fail(transfer, &fault);
        return 0;
    }
    if (count)
        memcpy(transfer->from, grant->page, count * sizeof(*transfer->from));
    transfer->count = count;
    transfer->layers_whole = grant->layers_whole;
    transfer->granted_ns = attnd_clock_ns();
    transfer->state = ATTND_TRANSFER_GRANTED;
    attnd_crash(ATTND_CRASH_DAEMON_PEER_GRANTED);
    attnd_transfer_go(transfer);
    return 0;
}

/* It may have been dropped meanwhile: the giver hears of that behind this. */
static int on_grant(struct attnd_peer *peer, const Attnd__PeerGrant *grant, int *fds, int fds_count)
{
    struct attnd_transfer *transfer = find(peer, grant->transfer);

    if (grant->transfer != peer->asked || (size_t)fds_count != (peer->far ? 0 : grant->n_memory))
        return -ATTND_E_PROTOCOL;
    peer->asked = 0;
    if (transfer && transfer->state == ATTND_TRANSFER_ASKED) {
        if (grant->n_page > transfer->pages_max)
            return -ATTND_E_PROTOCOL;
        (void)take_grant(transfer, grant, fds);
    }
    attnd_transfer_ask(peer);
    return 0;
}

static int on_refuse(struct attnd_peer *peer, const Attnd__PeerRefuse *refuse)
{
    struct attnd_transfer *transfer = find(peer, refuse->transfer);
    const struct attnd_fault fault = {.code = refuse->code,
                                      .field = refuse->field,
                                      .index = refuse->index,
                                      .value = refuse->value,
                                      .limit = refuse->limit};

    if (refuse->transfer == peer->asked)
        peer->asked = 0;
    if (transfer)
        attnd_transfer_fail(transfer, &fault);
    attnd_transfer_ask(peer);
    return 0;
}

static int on_given(const struct attnd_peer *peer, uint64_t number)
{
    struct attnd_transfer *transfer = find(peer, number);

    if (transfer && transfer->state == ATTND_TRANSFER_OVER)
        return 0; /* cancelled meanwhile */
    if (!transfer || transfer->state != ATTND_TRANSFER_DONE)
        return transfer ? -ATTND_E_PROTOCOL : 0;
    succeed(transfer);
    return 0;
}

static int on_layers(const struct attnd_peer *peer, const Attnd__PeerLayers *layers)
{
    struct attnd_transfer *transfer = find(peer, layers->transfer);

    if (!transfer || transfer->state == ATTND_TRANSFER_OVER)
        return 0;
    if (layers->layers_whole < transfer->layers_whole ||
        layers->layers_whole > transfer->pool->shape.layers)
        return -ATTND_E_PROTOCOL;
    transfer->layers_whole = layers->layers_whole;
    attnd_transfer_go(transfer);
    return 0;
}

/* So many layers were the giver's own until they were here. */
static int on_check(const struct attnd_peer *peer, const Attnd__PeerCheck *check)
{
    struct attnd_transfer *transfer = find(peer, check->transfer);

    if (!transfer || transfer->state == ATTND_TRANSFER_OVER)
        return 0;
    if (check->layers < transfer->layers_checked || check->layers > transfer->layers_landed)
        return -ATTND_E_PROTOCOL;
    transfer->layers_checked = check->layers;
    if (!transfer->arrival)
        return 0;
    attnd_arrival_layers(transfer->arrival, check->layers);
    transfer->service->peers->events->arrived(transfer->service);
    return 0;
}

/* The mover's word on the oldest piece. */
static int on_landed(const struct attnd_peer *peer, const Attnd__PeerLanded *landed)
{
    struct attnd_transfer *transfer = find(peer, landed->transfer);

    if (!peer->far || !transfer || transfer->pieces == 0)
        return -ATTND_E_PROTOCOL;
    attnd_transfer_land(transfer, landed->code < 0 ? landed->code : 0);
    attnd_peers_pump(peer->service);
    return 0;
}

void attnd_transfers_landed(struct attnd_peer *peer)
{
    for (struct attnd_transfer *at = peer->transfers; at; at = at->next)
        if (at->pieces > 0 && at->state == ATTND_TRANSFER_OVER) {
            at->pieces = 0;
            attnd_transfer_queue(at);
        }
}

static struct attnd_peer *peer_of(struct attnd_peer_link *link)
{
    return (struct attnd_peer *)(void *)((char *)link - offsetof(struct attnd_peer, link));
}

static int on_message(struct attnd_peer_link *link, const Attnd__PeerMessage *message, int *fds,
                      int fds_count)
{
    struct attnd_peer *peer = peer_of(link);

    switch (message->message_case) {
    case ATTND__PEER_MESSAGE__MESSAGE_GRANT:
        return on_grant(peer, message->grant, fds, fds_count);
    case ATTND__PEER_MESSAGE__MESSAGE_REFUSE:
        return on_refuse(peer, message->refuse);
    case ATTND__PEER_MESSAGE__MESSAGE_GIVEN:
        return on_given(peer, message->given->transfer);
    case ATTND__PEER_MESSAGE__MESSAGE_LAYERS:
        return on_layers(peer, message->layers);
    case ATTND__PEER_MESSAGE__MESSAGE_CHECK:
        return on_check(peer, message->check);
    case ATTND__PEER_MESSAGE__MESSAGE_LANDED:
        return on_landed(peer, message->landed);
    default:
        return -ATTND_E_PROTOCOL;
    }
}

/* Pages that arrive for a session that is gone. */
static struct attnd_transfer *find_orphan(const struct attnd_peer *peer)
{
    for (struct attnd_transfer *at = peer->transfers; at; at = at->next)
        if (at->arrival && !at->arrival->attachment)
            return at;
    return NULL;
}

static void on_beat(struct attnd_peer_link *link)
{
    static const struct attnd_fault cancelled = {.code = -ATTND_E_CANCELLED};
    const struct attnd_peer *peer = peer_of(link);
    struct attnd_transfer *orphan;

    while ((orphan = find_orphan(peer)))
        attnd_transfer_fail(orphan, &cancelled);
}

static struct attnd_transfer *find_live(const struct attnd_peer *peer)
{
    struct attnd_transfer *at = peer->transfers;

    while (at && at->state == ATTND_TRANSFER_OVER)
        at = at->next;
    return at;
}

/* Nothing that was to come over it will. Each end may be that of others. */
static void on_down(struct attnd_peer_link *link, const char *why)
{
    static const struct attnd_fault lost = {.code = -ATTND_E_PEER_LOST, .field = ATTND_F_PEER};
    struct attnd_peer *peer = peer_of(link);
    struct attnd_transfer *live;
    (void)why;

    peer->asked = 0;
    attnd_dial_down(peer);
    while ((live = find_live(peer)))
        attnd_transfer_fail(live, &lost);
}

const struct attnd_link_events attnd_peer_link_events = {
    .message = on_message, .beat = on_beat, .down = on_down};

/* ---- its beginning ---- */

/* A peer without a link may be whose ticket it is, whatever its service was called before. */
static struct attnd_peer *find_peer(const struct attnd_service *service, const uint8_t *ticket,
                                    struct attnd_fault *fault)
{
    struct attnd_peers *peers = service->peers;
    int lost = 0;

    for (uint32_t i = 0; peers && i < peers->peers_count; i++) {
        struct attnd_peer *peer = &peers->peers[i];
        if (!attnd_link_is_up(&peer->link))
            lost = 1;
        else if (peer->known && memcmp(peer->identity, ticket, ATTND_IDENTITY_BYTES) == 0)
            return peer;
    }
    if (lost)
        attnd_fault_set(fault, -ATTND_E_PEER_LOST, ATTND_F_PEER, 0, 0, 0);
    else
        attnd_fault_set(fault, -ATTND_E_EXPIRED, ATTND_F_TICKET, 0, 0, 0);
    return NULL;
}

int attnd_transfer_begin(struct attnd_client *client, const uint8_t *ticket,
                         struct attnd_attachment *attachment, uint32_t pages_max, int early,
                         void *context, struct attnd_transfer **out, struct attnd_fault *fault)
{
    struct attnd_service *service = client->service;
    struct attnd_peer *peer = find_peer(service, ticket, fault);

    if (!peer)
        return fault->code;
    if (peer->transfers_count >= TRANSFERS_MAX)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PEER, 0,
                               peer->transfers_count + INT64_C(1), TRANSFERS_MAX);
    int rc = attnd_quota_charge(client, sizeof(struct attnd_transfer), fault);
    if (rc < 0)
        return rc;
    struct attnd_transfer *transfer = calloc(1, sizeof(*transfer));
    if (!transfer) {
        attnd_quota_refund(service, attnd_quota_payer(client), sizeof(*transfer));
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    }
    *transfer = (struct attnd_transfer){.service = service,
                                        .peer = peer,
                                        .work = {.go = attnd_transfer_steps},
                                        .number = ++peer->next_number,
                                        .pages_max = pages_max,
                                        .early = early,
                                        .context = context,
                                        .client = client,
                                        .attachment = attachment,
                                        .pool = attachment->pool,
                                        .payer = attnd_quota_payer(client),
                                        .charged_bytes = sizeof(*transfer)};
    memcpy(transfer->ticket, ticket, ATTND_SECRET_BYTES);
    attnd_pool_ref(transfer->pool);
    enlist(peer, transfer);
    peer->transfers_count++;
    *out = transfer;
    attnd_transfer_queue(transfer);
    return 0;
}
