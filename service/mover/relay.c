/*
 * relay.c - what is said on a link that is up, from the daemon to the other mover and back; and
 * what this process has to hear of it.
 *
 * Messages go on as they are. Descriptors stay here. A message that the next one does not take yet
 * waits where it lies, and so does everything behind it.
 */
#include "ipc/fdpass.h"
#include "schemas/crash.h"
#include "service/mover/mover.h"

#include <string.h>

#define MESSAGES_A_TURN 16

/* One message is looked at at a time. */
static uint8_t datagram[ATTND_DATAGRAM_BYTES_MAX];
static _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t unpacked[ATTND_PEER_DECODE_BYTES];

static Attnd__PeerMessage *decode(const void *bytes, size_t size_bytes)
{
    struct attnd_admit_alloc alloc;
    Attnd__PeerMessage *message = NULL;

    attnd_admit_alloc_init(&alloc, unpacked, sizeof(unpacked));
    return attnd_peer_decode(bytes, size_bytes, &alloc, &message) == 0 ? message : NULL;
}

static int claims(const struct attnd_mover_link *link)
{
    return link->peer != ATTND_NONE;
}

static void pass_on(struct attnd_mover_link *link, const void *bytes, size_t size_bytes)
{
    if (attnd_wire_send(&link->wire, ATTND_WIRE_PEER, bytes, size_bytes) < 0)
        attnd_mover_fail(link, "it hung up");
}

#define LANDED_BYTES_MAX 64

/* Return: bytes in @packed. */
static size_t pack_landed(uint64_t transfer, int code, uint8_t packed[LANDED_BYTES_MAX])
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerLanded landed = ATTND__PEER_LANDED__INIT;

    landed.transfer = transfer;
    landed.code = code;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_LANDED;
    message.landed = &landed;
    return attnd__peer_message__pack(&message, packed);
}

/* Return: as attnd_fdpass_send(). */
static int say_landed(const struct attnd_mover_link *link, uint64_t transfer, int code)
{
    uint8_t packed[LANDED_BYTES_MAX];

    return attnd_fdpass_send(link->fd, packed, pack_landed(transfer, code, packed), NULL, 0);
}

/* ---- from the daemon ---- */

/* Where a transfer's pages are. One that cannot be had ends the transfer, and not the link. */
static void take_places(struct attnd_mover_link *link, const Attnd__PeerGrant *grant,
                        const int *fds, int fds_count)
{
    if ((size_t)fds_count != grant->n_memory) {
        attnd_mover_fail(link, "the daemon broke the protocol");
        return;
    }
    const int rc = claims(link) ? attnd_moves_place(&link->moves, grant, fds)
                                : attnd_moves_give(&link->moves, grant, fds);
    if (rc == -ATTND_E_PROTOCOL)
        attnd_mover_fail(link, "the daemon broke the protocol");
}

static void take_pull(struct attnd_mover_link *link, const Attnd__PeerPull *pull)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerPull further = *pull;
    uint8_t packed[64];
    int v_in_k = 0;

    if (attnd_moves_pull(&link->moves, pull, &v_in_k) < 0) { /* its places were not to be had */
        if (say_landed(link, pull->transfer, -ATTND_E_SYSTEM) < 0)
            attnd_mover_fail(link, "the daemon does not read");
        return;
    }
    further.has_v_in_k = 1;
    further.v_in_k = (uint32_t)v_in_k;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_PULL;
    message.pull = &further;
    pass_on(link, packed, attnd__peer_message__pack(&message, packed));
}

static void hear_claimer(struct attnd_mover_link *link, const Attnd__PeerMessage *message,
                         const int *fds, int fds_count, size_t bytes)
{
    switch (message->message_case) {
    case ATTND__PEER_MESSAGE__MESSAGE_GRANT:
        take_places(link, message->grant, fds, fds_count);
        return;
    case ATTND__PEER_MESSAGE__MESSAGE_PULL:
        take_pull(link, message->pull);
        return;
    case ATTND__PEER_MESSAGE__MESSAGE_DROP:
        attnd_moves_over(&link->moves, message->drop->transfer, -ATTND_E_CANCELLED);
        break;
    default:
        break;
    }
    pass_on(link, datagram, bytes);
}

static void hear_giver(struct attnd_mover_link *link, const Attnd__PeerMessage *message,
                       const int *fds, int fds_count, size_t bytes)
{
    switch (message->message_case) {
    case ATTND__PEER_MESSAGE__MESSAGE_GRANT:
        take_places(link, message->grant, fds, fds_count);
        break;
    case ATTND__PEER_MESSAGE__MESSAGE_LAYERS:
        attnd_moves_layers(&link->moves, message->layers->transfer, message->layers->layers_whole);
        break;
    case ATTND__PEER_MESSAGE__MESSAGE_REFUSE:
        attnd_moves_over(&link->moves, message->refuse->transfer, -ATTND_E_EXPIRED);
        break;
    case ATTND__PEER_MESSAGE__MESSAGE_GIVEN:
        attnd_moves_over(&link->moves, message->given->transfer, 0);
        break;
    default:
        break;
    }
    pass_on(link, datagram, bytes);
}

void attnd_mover_from_daemon(struct attnd_mover_link *link)
{
    int fds[ATTND_FDS_MAX], fds_count = 0;

    for (int i = 0; i < MESSAGES_A_TURN && !link->ended &&
                    attnd_wire_waiting(&link->wire) < ATTND_WIRE_OUT_FULL;
         i++) {
        const long got = attnd_fdpass_recv(link->fd, datagram, sizeof(datagram), fds, &fds_count);
        if (got == 0)
            return;
        if (got < 0) {
            attnd_mover_fail(link, "the daemon hung up");
            return;
        }
        attnd_crash(ATTND_CRASH_MOVER_HEARD_DAEMON);
        const Attnd__PeerMessage *message = decode(datagram, (size_t)got);
        if (!message)
            attnd_mover_fail(link, "the daemon broke the protocol");
        else if (claims(link))
            hear_claimer(link, message, fds, fds_count, (size_t)got);
        else
            hear_giver(link, message, fds, fds_count, (size_t)got);
        attnd_fdpass_close(fds, fds_count);
    }
}

/* ---- from the other mover ---- */

static void refuse_pull(struct attnd_mover_link *link, uint64_t transfer, int code)
{
    uint8_t packed[LANDED_BYTES_MAX];

    pass_on(link, packed, pack_landed(transfer, code, packed));
}

/* What a giver says. Return: 1 it is the daemon's to hear. */
static int heard_of_giver(struct attnd_mover_link *link, const Attnd__PeerMessage *message)
{
    switch (message->message_case) {
    case ATTND__PEER_MESSAGE__MESSAGE_GIVEN:
        attnd_moves_over(&link->moves, message->given->transfer, 0);
        return 1;
    case ATTND__PEER_MESSAGE__MESSAGE_LANDED:
        if (message->landed->code < 0)
            attnd_moves_fail(&link->moves, message->landed->transfer, message->landed->code);
        else
            attnd_mover_fail(link, "it broke the protocol");
        return 0;
    default:
        return 1;
    }
}

static int heard_of_claimer(struct attnd_mover_link *link, const Attnd__PeerMessage *message)
{
    int rc;

    switch (message->message_case) {
    case ATTND__PEER_MESSAGE__MESSAGE_PULL:
        rc = attnd_moves_pulled(&link->moves, message->pull);
        if (rc == -ATTND_E_PROTOCOL)
            attnd_mover_fail(link, "it broke the protocol");
        else if (rc < 0)
            refuse_pull(link, message->pull->transfer, rc);
        return 0;
    case ATTND__PEER_MESSAGE__MESSAGE_DROP:
        attnd_moves_over(&link->moves, message->drop->transfer, 0);
        return 1;
    case ATTND__PEER_MESSAGE__MESSAGE_LANDED: /* would be taken for this mover's own word */
        attnd_mover_fail(link, "it broke the protocol");
        return 0;
    default:
        return 1;
    }
}

/* Return: 1 it is done with; 0 the daemon takes no more now, or the link has failed. */
static int take_frame(struct attnd_mover_link *link, const uint8_t *payload, size_t bytes)
{
    const Attnd__PeerMessage *message = link->waits ? NULL : decode(payload, bytes);
    int up = link->waits;

    if (!up && !message)
        attnd_mover_fail(link, "it broke the protocol");
    else if (!up)
        up = claims(link) ? heard_of_giver(link, message) : heard_of_claimer(link, message);
    link->waits = 0;
    if (link->ended || !up)
        return !link->ended;
    const int rc = attnd_fdpass_send(link->fd, payload, bytes, NULL, 0);
    link->waits = rc == -ATTND_E_FULL;
    if (rc < 0 && !link->waits)
        attnd_mover_fail(link, "the daemon hung up");
    return rc == 0;
}

void attnd_mover_from_peer(struct attnd_mover_link *link)
{
    enum attnd_wire_type type;
    const uint8_t *payload;
    size_t bytes;

    for (int i = 0; i < MESSAGES_A_TURN && !link->ended; i++) {
        if (!attnd_mover_tell_landed(link))
            return;
        const int heard = attnd_wire_receive(&link->wire);
        const int rc = attnd_wire_look(&link->wire, &type, &payload, &bytes);
        if (rc < 0 || (rc == 1 && type != ATTND_WIRE_PEER))
            attnd_mover_fail(link, "it broke the protocol");
        else if (rc == 0 && heard < 0)
            attnd_mover_fail(link, "it hung up");
        if (rc <= 0 || link->ended || !take_frame(link, payload, bytes))
            return;
        attnd_crash(ATTND_CRASH_MOVER_HEARD_PEER);
        attnd_wire_taken(&link->wire);
    }
}

/* ---- pulls ---- */

int attnd_mover_tell_landed(struct attnd_mover_link *link)
{
    uint64_t transfer;
    int code;

    while (!link->ended && attnd_moves_landed(&link->moves, &transfer, &code)) {
        const int rc = say_landed(link, transfer, code);
        if (rc == -ATTND_E_FULL)
            return 0;
        if (rc < 0) {
            attnd_mover_fail(link, "the daemon hung up");
            return 0;
        }
        attnd_crash(ATTND_CRASH_MOVER_LANDED);
        attnd_moves_told(&link->moves);
    }
    return !link->ended;
}

static void on_received(void *context, const void *header, size_t header_bytes, const void *data,
                        size_t bytes)
{
    struct attnd_mover_link *link = context;

    if (claims(link) && !link->ended &&
        attnd_moves_received(&link->moves, header, header_bytes, data, bytes) < 0)
        attnd_mover_fail(link, "it sends what was not asked for");
}

static void on_sent(void *context, struct attnd_ucx_message *message, int failed)
{
    struct attnd_mover_link *link = context;

    attnd_moves_sent(&link->moves, message);
    if (failed)
        attnd_mover_fail(link, "UCX cannot send to it");
}

static void on_failed(void *context, const char *why)
{
    attnd_mover_fail(context, why);
}

const struct attnd_ucx_events attnd_mover_ucx_events = {
    .received = on_received, .sent = on_sent, .failed = on_failed};
