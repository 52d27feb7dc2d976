/*
 * give.c - the giver's side: tickets are lent, spent, or returned.
 *
 * While a ticket is lent its pages are leased, whatever becomes of the claimer. It is spent when
 * the claimer says that it has the bytes, and as it was before when the claimer drops it, when the
 * link ends, or when the claimer is not done in time. Then a PeerDone that comes after all is
 * refused: what the claimer has read may have been somebody else's by then, and it does not use it.
 */
#include "persistent/bring.h"
#include "schemas/clock.h"
#include "schemas/crash.h"
#include "service/peers/peers.h"
#include "service/peers/peers_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define GRANTS_MAX 1024u /* of one claimer */
/* Longer than any link needs for a ticket, and too short for a claimer that hangs to keep pages. */
#define GRANT_NS UINT64_C(60000000000)

/* ---- answers ---- */

static void refuse(struct attnd_guest *guest, uint64_t number, const struct attnd_fault *fault)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerRefuse answer = ATTND__PEER_REFUSE__INIT;

    answer.transfer = number;
    answer.code = fault->code;
    answer.has_field = answer.has_index = answer.has_value = answer.has_limit = 1;
    answer.field = fault->field;
    answer.index = fault->index;
    answer.value = fault->value;
    answer.limit = fault->limit;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_REFUSE;
    message.refuse = &answer;
    (void)attnd_link_send(&guest->link, &message, NULL, 0);
}

/* Return: 0, also if the link has ended by it; < 0 with *@fault. */
static int send_grant(struct attnd_guest *guest, uint64_t number, struct attnd_ticket *ticket,
                      struct attnd_fault *fault)
{
    const struct attnd_grant_of what = {.pool = ticket->pool,
                                        .pages = ticket->pages,
                                        .count = ticket->count,
                                        .transfer = number,
                                        .layers_whole = ticket->layers,
                                        .reads = 1,
                                        .host_only = guest->far};

    return attnd_grant_send(&guest->link, &what, fault);
}

/* ---- grants ---- */

static struct attnd_grant **find(struct attnd_guest *guest, uint64_t number)
{
    struct attnd_grant **link = &guest->grants;

    while (*link && (*link)->number != number)
        link = &(*link)->next;
    return link;
}

/* Out of the list and freed. Return: its ticket, which is lent. */
static struct attnd_ticket *take_out(struct attnd_guest *guest, struct attnd_grant **link)
{
    struct attnd_grant *grant = *link;
    struct attnd_ticket *ticket = grant->ticket;

    *link = grant->next;
    guest->grants_count--;
    free(grant);
    return ticket;
}

static int check_take(struct attnd_guest *guest, const Attnd__PeerTake *take,
                      const struct attnd_ticket *ticket, struct attnd_fault *fault)
{
    if (ticket->lent)
        return attnd_fault_set(fault, -ATTND_E_BUSY, ATTND_F_TICKET, 0, 0, 0);
    if (ticket->count > take->pages_max)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_COUNT, 0, take->pages_max,
                               ticket->count);
    if (ticket->pool->memories_count > ATTND_PEER_MEMORIES_MAX)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY, 0,
                               ticket->pool->memories_count, ATTND_PEER_MEMORIES_MAX);
    if (guest->grants_count >= GRANTS_MAX)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PEER, 0, GRANTS_MAX + 1,
                               GRANTS_MAX);
    return 0;
}

static int lend(struct attnd_guest *guest, uint64_t number, struct attnd_ticket *ticket,
                struct attnd_fault *fault)
{
    struct attnd_grant *grant = malloc(sizeof(*grant));

    if (!grant)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    *grant = (struct attnd_grant){.guest = guest,
                                  .told = ticket->layers,
                                  .next = guest->grants,
                                  .number = number,
                                  .ticket = ticket,
                                  .granted_ns = attnd_clock_ns()};
    guest->grants = grant;
    guest->grants_count++;
    attnd_ticket_lend(ticket, grant);
    attnd_crash(ATTND_CRASH_DAEMON_PEER_LENT);
    const int rc = send_grant(guest, number, ticket, fault); /* it may have returned by now */
    if (rc < 0)
        attnd_ticket_return(take_out(guest, find(guest, number)));
    return rc;
}

static int on_take(struct attnd_guest *guest, const Attnd__PeerTake *take)
{
    struct attnd_fault fault = {.code = -ATTND_E_EXPIRED, .field = ATTND_F_TICKET};
    struct attnd_ticket *ticket = take->ticket.len == ATTND_SECRET_BYTES
                                      ? attnd_ticket_find(guest->service, take->ticket.data)
                                      : NULL;

    if (*find(guest, take->transfer))
        return -ATTND_E_PROTOCOL;
    if (ticket && check_take(guest, take, ticket, &fault) == 0 &&
        lend(guest, take->transfer, ticket, &fault) == 0)
        return 0;
    guest->failed++;
    refuse(guest, take->transfer, &fault);
    return 0;
}

/* ---- layer by layer ---- */

/* One that finds no room is told with the next beat. */
static void tell_layers(struct attnd_grant *grant)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerLayers layers = ATTND__PEER_LAYERS__INIT;

    if (grant->told == grant->ticket->layers)
        return;
    layers.transfer = grant->number;
    layers.layers_whole = grant->ticket->layers;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_LAYERS;
    message.layers = &layers;
    if (attnd_link_try(&grant->guest->link, &message) == 0)
        grant->told = layers.layers_whole;
}

void attnd_guest_grown(struct attnd_ticket *ticket)
{
    struct attnd_grant *grant = ticket->lent;

    grant->granted_ns = attnd_clock_ns();
    tell_layers(grant);
}

void attnd_guest_broken(struct attnd_ticket *ticket)
{
    const struct attnd_grant *grant = ticket->lent;
    struct attnd_guest *guest = grant->guest;
    const uint64_t number = grant->number;
    const struct attnd_fault fault = {.code = -ATTND_E_EXPIRED, .field = ATTND_F_TICKET};

    (void)take_out(guest, find(guest, number));
    guest->failed++;
    refuse(guest, number, &fault);
}

/* Is it lent still? No answer says that it is not: a refusal went before, or the link goes. */
static int on_check(struct attnd_guest *guest, const Attnd__PeerCheck *check)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerCheck answer = *check;
    struct attnd_fault fault = {.code = -ATTND_E_EXPIRED, .field = ATTND_F_TICKET};
    const struct attnd_grant *grant = *find(guest, check->transfer);

    if (!grant) {
        refuse(guest, check->transfer, &fault);
        return 0;
    }
    if (check->layers > grant->ticket->layers)
        return -ATTND_E_PROTOCOL;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_CHECK;
    message.check = &answer;
    (void)attnd_link_send(&guest->link, &message, NULL, 0);
    return 0;
}

static int on_done(struct attnd_guest *guest, uint64_t number)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerGiven given = ATTND__PEER_GIVEN__INIT;
    struct attnd_grant **link = find(guest, number);
    struct attnd_fault fault = {.code = -ATTND_E_EXPIRED, .field = ATTND_F_TICKET};

    if (!*link) {
        refuse(guest, number, &fault);
        return 0;
    }
    if (!attnd_ticket_whole((*link)->ticket))
        return -ATTND_E_PROTOCOL;
    const uint64_t took_ns = attnd_clock_ns() - (*link)->granted_ns;
    struct attnd_ticket *ticket = take_out(guest, link);
    const struct attnd_heap_pool *shape = &ticket->pool->shape;
    const uint64_t bytes = ticket->count * attnd_bring_bytes(shape, shape->layers);
    guest->done++;
    guest->pages += ticket->count;
    guest->bytes += bytes;
    guest->bytes_per_s = took_ns ? (uint64_t)((double)bytes * 1e9 / (double)took_ns) : 0;
    attnd_ticket_spend(ticket);
    attnd_crash(ATTND_CRASH_DAEMON_PEER_SPENT);
    given.transfer = number;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_GIVEN;
    message.given = &given;
    (void)attnd_link_send(&guest->link, &message, NULL, 0);
    return 0;
}

/* One that was refused, or came too late, is dropped as well: there is nothing of it here. */
static void on_drop(struct attnd_guest *guest, uint64_t number)
{
    struct attnd_grant **link = find(guest, number);

    if (!*link)
        return;
    guest->failed++;
    attnd_ticket_return(take_out(guest, link));
}

static struct attnd_guest *guest_of(struct attnd_peer_link *link)
{
    return (struct attnd_guest *)(void *)((char *)link - offsetof(struct attnd_guest, link));
}

static int on_message(struct attnd_peer_link *link, const Attnd__PeerMessage *message, int *fds,
                      int fds_count)
{
    struct attnd_guest *guest = guest_of(link);
    (void)fds;

    if (fds_count > 0)
        return -ATTND_E_PROTOCOL;
    switch (message->message_case) {
    case ATTND__PEER_MESSAGE__MESSAGE_TAKE:
        return on_take(guest, message->take);
    case ATTND__PEER_MESSAGE__MESSAGE_DONE:
        return on_done(guest, message->done->transfer);
    case ATTND__PEER_MESSAGE__MESSAGE_CHECK:
        return on_check(guest, message->check);
    case ATTND__PEER_MESSAGE__MESSAGE_DROP:
        on_drop(guest, message->drop->transfer);
        return 0;
    default:
        return -ATTND_E_PROTOCOL;
    }
}

/* Claimers that hang, and say all the same that they live. */
static void on_beat(struct attnd_peer_link *link)
{
    struct attnd_guest *guest = guest_of(link);
    const uint64_t now_ns = attnd_clock_ns();
    struct attnd_grant **at = &guest->grants;

    while (*at) {
        if (now_ns - (*at)->granted_ns < GRANT_NS) {
            tell_layers(*at);
            if (!attnd_link_is_up(link))
                return; /* and so have the grants ended */
            at = &(*at)->next;
            continue;
        }
        guest->failed++;
        attnd_ticket_return(take_out(guest, at));
    }
}

static void on_down(struct attnd_peer_link *link, const char *why)
{
    struct attnd_guest *guest = guest_of(link);

    attnd_log(ATTND_LOG_INFO, "the service %s claims here no more: %s", guest->name, why);
    if (guest->far)
        attnd_far_owes(guest->service);
    while (guest->grants) {
        guest->failed++;
        attnd_ticket_return(take_out(guest, &guest->grants));
    }
}

const struct attnd_link_events attnd_guest_link_events = {
    .message = on_message, .beat = on_beat, .down = on_down};
