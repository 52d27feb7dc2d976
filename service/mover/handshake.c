/*
 * handshake.c - two movers meet.
 *
 *   the side that connected (claimer)      the other one (giver)
 *     HELLO: version, nonce        -->
 *                                  <--     HELLO: version, nonce
 *     INTRO: signed                -->
 *                                  <--     INTRO, or REFUSE: signed
 *
 * A stranger gets a nonce for its hello, and nothing else. What a link needs of memory and of UCX
 * is made for those alone that have signed.
 */
#include "schemas/clock.h"
#include "schemas/crash.h"
#include "schemas/version.h"
#include "service/base/log.h"
#include "service/mover/mover.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char magic[8] = "attndmvr";

struct hello {
    char magic[8];
    uint32_t version;
    uint8_t nonce[ATTND_AUTH_BYTES];
};

struct intro {
    uint32_t peer_version;
    uint8_t identity[ATTND_IDENTITY_BYTES];
    char daemon_version[32];
    uint32_t ucx_major, ucx_minor, ucx_release;
    uint32_t address_bytes; /* where fragments go; of a claimer */
    uint8_t secret[ATTND_MOVES_SECRET_BYTES];
    uint8_t address[ATTND_UCX_ADDRESS_BYTES_MAX];
};

/* What UCX knows of interfaces is of when it was opened, on both sides. */
static const char no_way[] = "UCX finds no way to the claimer: do both see one network?";

static int connects(const struct attnd_mover_link *link)
{
    return link->peer != ATTND_NONE;
}

/* ---- hellos ---- */

static void greet(struct attnd_mover_link *link)
{
    struct hello hello = {.version = ATTND_MOVER_VERSION};
    uint8_t *own = link->nonces[connects(link) ? 0 : 1];

    memcpy(hello.magic, magic, sizeof(magic));
    if (attnd_auth_nonce(own, ATTND_AUTH_BYTES) < 0) {
        attnd_mover_fail(link, "there is no randomness");
        return;
    }
    memcpy(hello.nonce, own, sizeof(hello.nonce));
    if (attnd_wire_send(&link->wire, ATTND_WIRE_HELLO, &hello, sizeof(hello)) < 0)
        attnd_mover_fail(link, "it hung up");
}

void attnd_mover_connected(struct attnd_mover_link *link)
{
    char text[96];
    int error = 0;
    socklen_t bytes = sizeof(error);

    if (getsockopt(link->wire.fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0 || error) {
        snprintf(text, sizeof(text), "%s", strerror(error ? error : errno));
        attnd_mover_fail(link, text);
        return;
    }
    link->state = ATTND_MOVER_GREETING;
    greet(link);
}

static void introduce(struct attnd_mover_link *link)
{
    struct intro intro = {.peer_version = ATTND_PEER_VERSION};
    const int address_bytes = connects(link) ? attnd_ucx_address(link->ucx, intro.address) : 0;
    unsigned major, minor, release;

    if (address_bytes < 0) {
        attnd_mover_fail(link, "UCX's address is too long");
        return;
    }
    attnd_ucx_version(&major, &minor, &release);
    intro.ucx_major = major;
    intro.ucx_minor = minor;
    intro.ucx_release = release;
    intro.address_bytes = (uint32_t)address_bytes;
    memcpy(intro.identity, link->mover->identity, sizeof(intro.identity));
    memcpy(intro.secret, link->moves.secret, sizeof(intro.secret));
    snprintf(intro.daemon_version, sizeof(intro.daemon_version), "%s", ATTND_VERSION);
    if (attnd_wire_send(&link->wire, ATTND_WIRE_INTRO, &intro, sizeof(intro)) < 0)
        attnd_mover_fail(link, "it hung up");
}

/* A link of its own in UCX. Return: 0; < 0 it has failed. */
static int make_ucx(struct attnd_mover_link *link)
{
    const int rc = attnd_ucx_new(&attnd_mover_ucx_events, link, &link->ucx);

    link->moves.ucx = link->ucx;
    if (rc < 0)
        attnd_mover_fail(link, "UCX has no worker for it");
    return rc;
}

static void take_hello(struct attnd_mover_link *link, const uint8_t *payload, size_t bytes)
{
    struct hello hello;

    if (bytes != sizeof(hello)) {
        attnd_mover_fail(link, "what listens there is no attnd-mover");
        return;
    }
    memcpy(&hello, payload, sizeof(hello));
    if (memcmp(hello.magic, magic, sizeof(magic)) != 0 || hello.version != ATTND_MOVER_VERSION) {
        attnd_mover_fail(link, "it speaks another version");
        return;
    }
    memcpy(link->nonces[connects(link) ? 1 : 0], hello.nonce, sizeof(hello.nonce));
    if (!connects(link))
        greet(link);
    if (attnd_auth_begin(&link->wire.auth, &link->mover->key, connects(link) ? 0 : 1,
                         (const uint8_t(*)[ATTND_AUTH_BYTES])link->nonces) < 0) {
        attnd_mover_fail(link, "libcrypto does not sign");
        return;
    }
    link->wire.signs = link->wire.checks = 1;
    link->state = ATTND_MOVER_MEETING;
    if (!connects(link))
        return;
    if (attnd_auth_nonce(link->moves.secret, sizeof(link->moves.secret)) < 0)
        attnd_mover_fail(link, "there is no randomness");
    else if (make_ucx(link) == 0)
        introduce(link);
}

/* ---- intros ---- */

/* Return: NULL: it is as it should be. */
static const char *check_intro(const struct attnd_mover_link *link, const struct intro *intro,
                               char *text, size_t text_bytes)
{
    unsigned major, minor, release;

    attnd_ucx_version(&major, &minor, &release);
    if (intro->peer_version != ATTND_PEER_VERSION)
        return "the services speak different versions";
    if (memcmp(intro->identity, link->mover->identity, sizeof(intro->identity)) == 0)
        return "it is this service";
    if (intro->ucx_major == major && intro->ucx_minor == minor)
        return NULL;
    snprintf(text, text_bytes, "UCX %u.%u here and %u.%u there do not understand each other", major,
             minor, (unsigned)intro->ucx_major, (unsigned)intro->ucx_minor);
    return text;
}

static void refuse(struct attnd_mover_link *link, const char *why)
{
    (void)attnd_wire_send(&link->wire, ATTND_WIRE_REFUSE, why, strlen(why));
    attnd_mover_fail(link, why);
}

/* An interface may have come up meanwhile: the daemon starts another mover. Not while links work.
 */
static void begin_again(struct attnd_mover *mover)
{
    for (const struct attnd_mover_link *link = mover->links; link; link = link->next)
        if (link->state == ATTND_MOVER_UP)
            return;
    attnd_log(ATTND_LOG_INFO, "mover: %s This one leaves, and the next one looks again", no_way);
    mover->leaves = 1;
}

/* The daemon gets its end. */
static void hand_up(struct attnd_mover_link *link, const struct intro *intro)
{
    struct attnd_mover_message message = {
        .kind = ATTND_MOVER_LINK, .peer = link->peer, .serial = link->serial};
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) {
        attnd_mover_fail(link, "no socket can be made for it");
        return;
    }
    link->fd = ends[0];
    link->state = ATTND_MOVER_UP;
    memcpy(message.identity, intro->identity, sizeof(message.identity));
    if (connects(link))
        snprintf(message.text, sizeof(message.text), "%.*s", (int)sizeof(intro->daemon_version),
                 intro->daemon_version);
    else
        snprintf(message.text, sizeof(message.text), "%s", link->from);
    attnd_mover_say(link->mover, &message, ends[1]);
    close(ends[1]);
    attnd_crash(ATTND_CRASH_MOVER_LINKED);
}

static void take_intro(struct attnd_mover_link *link, const uint8_t *payload, size_t bytes)
{
    struct intro intro;
    char text[96];

    if (bytes != sizeof(intro)) {
        attnd_mover_fail(link, "its introduction makes no sense");
        return;
    }
    memcpy(&intro, payload, sizeof(intro));
    const char *why = check_intro(link, &intro, text, sizeof(text));
    if (why) {
        refuse(link, why);
        return;
    }
    if (!connects(link)) {
        memcpy(link->moves.secret, intro.secret, sizeof(intro.secret));
        if (make_ucx(link) < 0)
            return;
        if (attnd_ucx_connect(link->ucx, intro.address, intro.address_bytes) < 0) {
            refuse(link, no_way);
            begin_again(link->mover);
            return;
        }
        introduce(link);
    }
    if (!link->ended)
        hand_up(link, &intro);
}

/* Refused by the other side. Its text is for a log. */
static void take_refusal(struct attnd_mover_link *link, const uint8_t *payload, size_t bytes)
{
    char text[96] = "";

    for (size_t i = 0; i < bytes && i < sizeof(text) - 1; i++)
        text[i] = payload[i] >= ' ' && payload[i] < 127 ? (char)payload[i] : '?';
    attnd_mover_fail(link, text);
    if (strcmp(text, no_way) == 0)
        begin_again(link->mover);
}

void attnd_mover_meet(struct attnd_mover_link *link)
{
    enum attnd_wire_type type;
    const uint8_t *payload;
    size_t bytes;

    while (!link->ended && link->state != ATTND_MOVER_UP) {
        const int heard = attnd_wire_receive(&link->wire);
        const int rc = attnd_wire_look(&link->wire, &type, &payload, &bytes);
        if (rc < 0)
            attnd_mover_fail(link, rc == -ATTND_E_PERMISSION ? "it has another key"
                                                             : "it broke the protocol");
        else if (rc == 0 && heard < 0)
            attnd_mover_fail(link, link->state == ATTND_MOVER_MEETING
                                       ? "it hung up: has it the same key?"
                                       : "it hung up");
        if (rc <= 0)
            return;
        if (link->state == ATTND_MOVER_GREETING && type == ATTND_WIRE_HELLO)
            take_hello(link, payload, bytes);
        else if (link->state == ATTND_MOVER_MEETING && type == ATTND_WIRE_INTRO)
            take_intro(link, payload, bytes);
        else if (link->state == ATTND_MOVER_MEETING && type == ATTND_WIRE_REFUSE)
            take_refusal(link, payload, bytes);
        else
            attnd_mover_fail(link, "it broke the protocol");
        attnd_wire_taken(&link->wire);
    }
}
