/*
 * scrape.c - as much HTTP as a scraper of metrics speaks: one request, one answer, the end.
 *
 * The loop has one thread and waits for nobody. A scraper is read and written as far as its socket
 * goes, at once if its request is there already. It is dropped when its 5 s are over. Where there
 * are too many, the oldest goes of the process that has the most. Over loopback nobody says which
 * process it is: there a connection is not seen before its request is. The text is made at
 * most four times a second, whatever many ask: a process that asks for nothing else costs the
 * service no more than that and a copy.
 *
 * A descriptor that somebody sends over the unix socket may close slowly, so it is received and
 * closed elsewhere (ipc/discard.h), like those of clients.
 */
#include "service/daemon/scrape.h"

#include "ipc/discard.h"
#include "ipc/fdpass.h"
#include "service/args/args.h"
#include "service/base/metrics.h"
#include "service/daemon/accept.h"
#include "service/daemon/listen.h"
#include "service/rpc/calls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCRAPERS_MAX 16u
#define PATIENCE_NS 5000000000u
#define FRESH_NS 250000000u
#define PAUSE_NS 100000000u
#define REQUEST_BYTES 8192u
#define BACKLOG 128
#define REQUEST_S 5 /* for which the kernel keeps a connection over loopback that says nothing */

struct scraper {
    struct attnd_scrape *scrape;
    struct scraper *next;
    struct attnd_watch *watch, *timer;
    uint32_t holds; /* watches that the loop has not let go of; one more until it is over */
    int fd;
    uid_t uid;    /* of the unix socket's peer */
    pid_t pid;    /* likewise; 0: not known */
    char *answer; /* NULL: the request is not read yet */
    size_t answer_bytes, sent_bytes, request_bytes;
    char request[REQUEST_BYTES];
};

struct attnd_scrape {
    struct attnd_service *service;
    struct attnd_listen listener;
    char path[108]; /* "": loopback */
    struct attnd_watch *watch, *timer;
    struct scraper *scrapers; /* new ones in front */
    uint32_t scrapers_count;
    char *text; /* the last, of text_ns */
    size_t text_bytes;
    uint64_t text_ns;
};

int attnd_scrape_where(const char *where, struct sockaddr_in *loopback)
{
    static const char prefix[] = "127.0.0.1:";
    uint64_t port;

    if (strchr(where, '/'))
        return strlen(where) < sizeof(((struct attnd_scrape *)NULL)->path) ? 0 : -ATTND_E_INVALID;
    if (strncmp(where, prefix, sizeof(prefix) - 1) != 0 ||
        attnd_number_parse(where + sizeof(prefix) - 1, 0, 65535, &port) < 0)
        return -ATTND_E_INVALID;
    if (loopback)
        *loopback = (struct sockaddr_in){.sin_family = AF_INET,
                                         .sin_port = htons((uint16_t)port),
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return 1;
}

/* ---- the text ---- */

static int make_text(struct attnd_scrape *scrape)
{
    Attnd__Reply reply = ATTND__REPLY__INIT;
    struct attnd_fault fault = {0};
    struct attnd_call call = {.service = scrape->service, .reply = &reply, .fault = &fault};
    char *text = NULL;
    size_t text_bytes = 0;

    attnd_control_reset(scrape->service);
    if (attnd_call_status(&call) < 0)
        return -ATTND_E_NO_MEMORY;
    FILE *out = open_memstream(&text, &text_bytes);
    if (!out)
        return -ATTND_E_NO_MEMORY;
    attnd_metrics_print(out, reply.status);
    if (ferror(out) | fclose(out)) {
        free(text);
        return -ATTND_E_NO_MEMORY;
    }
    free(scrape->text);
    scrape->text = text;
    scrape->text_bytes = text_bytes;
    scrape->text_ns = attnd_clock_ns();
    return 0;
}

static int make_answer(struct scraper *scraper)
{
    struct attnd_scrape *scrape = scraper->scrape;
    const int asks = strncmp(scraper->request, "GET ", 4) == 0;
    char head[160];

    if (asks && (!scrape->text || attnd_clock_ns() - scrape->text_ns > FRESH_NS) &&
        make_text(scrape) < 0)
        return -ATTND_E_NO_MEMORY;
    const size_t text_bytes = asks ? scrape->text_bytes : 0;
    const size_t head_bytes =
        (size_t)snprintf(head, sizeof(head),
                         "HTTP/1.0 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                         "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                         asks ? "200 OK" : "405 Method Not Allowed", text_bytes);
    scraper->answer = malloc(head_bytes + text_bytes);
    if (!scraper->answer)
        return -ATTND_E_NO_MEMORY;
    memcpy(scraper->answer, head, head_bytes);
    if (text_bytes)
        memcpy(scraper->answer + head_bytes, scrape->text, text_bytes);
    scraper->answer_bytes = head_bytes + text_bytes;
    return 0;
}

/* ---- one scraper ---- */

static void close_peer(const struct attnd_scrape *scrape, uid_t uid, int fd)
{
    if (!scrape->path[0] || scrape->listener.refuses_descriptors)
        close(fd); /* no descriptor can be in it */
    else
        attnd_discard(uid, &fd, 1);
}

static void let_go(void *context)
{
    struct scraper *scraper = context;

    if (--scraper->holds)
        return;
    close_peer(scraper->scrape, scraper->uid, scraper->fd);
    free(scraper->answer);
    free(scraper);
}

static void unwatch(struct scraper *scraper)
{
    struct attnd_watch *watch = scraper->watch;

    if (!watch)
        return;
    scraper->watch = NULL;
    scraper->holds++;
    attnd_loop_unwatch(scraper->scrape->service->loop, watch, let_go, scraper);
}

static void end(struct scraper *scraper)
{
    struct attnd_scrape *scrape = scraper->scrape;
    struct scraper **link = &scrape->scrapers;

    while (*link != scraper)
        link = &(*link)->next;
    *link = scraper->next;
    scrape->scrapers_count--;
    attnd_loop_unwatch(scrape->service->loop, scraper->timer, NULL, NULL);
    shutdown(scraper->fd, SHUT_RDWR);
    unwatch(scraper);
    let_go(scraper);
}

static void on_timer(void *context)
{
    struct scraper *scraper = context;

    scraper->timer = NULL;
    end(scraper);
}

/* Return: 1 there may be more to do later; 0 it is over. */
static int write_on(struct scraper *scraper)
{
    while (scraper->sent_bytes < scraper->answer_bytes) {
        ssize_t sent =
            send(scraper->fd, scraper->answer + scraper->sent_bytes,
                 scraper->answer_bytes - scraper->sent_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0)
            return errno == EAGAIN || errno == EINTR;
        scraper->sent_bytes += (size_t)sent;
    }
    return 0;
}

static void on_writable(void *context, uint32_t poll_events)
{
    (void)poll_events;
    if (!write_on(context))
        end(context);
}

/* The request is read: from now on it is about room to write. */
static void answer(struct scraper *scraper)
{
    if (make_answer(scraper) < 0 || !write_on(scraper)) {
        end(scraper);
        return;
    }
    unwatch(scraper);
    scraper->watch = attnd_loop_watch_fd(scraper->scrape->service->loop, scraper->fd, POLLOUT,
                                         on_writable, scraper);
    if (!scraper->watch)
        end(scraper);
}

static void on_readable(void *context, uint32_t poll_events)
{
    struct scraper *scraper = context;
    const size_t room = REQUEST_BYTES - 1 - scraper->request_bytes;
    int fds[ATTND_FDS_MAX], fds_count = 0;

    (void)poll_events;
    /* A request has no use for descriptors: they stay in the socket, and go with it. */
    if (attnd_fdpass_carries(scraper->fd)) {
        end(scraper);
        return;
    }
    long got = room ? attnd_fdpass_recv_from(scraper->fd, scraper->uid,
                                             scraper->request + scraper->request_bytes, room, fds,
                                             &fds_count)
                    : -ATTND_E_RANGE;
    if (got == 0)
        return;
    if (fds_count > 0)
        attnd_discard(scraper->uid, fds, fds_count);
    if (got < 0 || fds_count > 0) {
        end(scraper);
        return;
    }
    scraper->request_bytes += (size_t)got;
    scraper->request[scraper->request_bytes] = 0;
    if (strstr(scraper->request, "\r\n\r\n") || strstr(scraper->request, "\n\n"))
        answer(scraper);
}

/* ---- the door ---- */

static int admitted(const struct attnd_scrape *scrape, int fd, uid_t *uid, pid_t *pid)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);

    *uid = ATTND_DISCARD_STRANGERS;
    *pid = 0;
    if (!scrape->path[0])
        return 1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
        return 0;
    if (peer.uid != 0 && !attnd_accept_allows(&scrape->service->options, peer.uid))
        return 0;
    *uid = peer.uid;
    *pid = peer.pid;
    return !attnd_discard_full(peer.uid);
}

static uint32_t scrapers_of(const struct attnd_scrape *scrape, pid_t pid)
{
    uint32_t count = 0;

    for (const struct scraper *at = scrape->scrapers; at; at = at->next)
        count += at->pid == pid;
    return count;
}

/* The oldest of the process that has the most. */
static struct scraper *one_too_many(const struct attnd_scrape *scrape)
{
    struct scraper *found = NULL;
    uint32_t most = 0;

    for (struct scraper *at = scrape->scrapers; at; at = at->next) {
        const uint32_t count = scrapers_of(scrape, at->pid);
        if (count < most)
            continue;
        most = count;
        found = at; /* new ones are in front */
    }
    return found;
}

static void welcome(struct attnd_scrape *scrape, int fd)
{
    struct attnd_loop *loop = scrape->service->loop;
    uid_t uid;
    pid_t pid;
    struct scraper *scraper = admitted(scrape, fd, &uid, &pid) ? calloc(1, sizeof(*scraper)) : NULL;

    if (!scraper) {
        close_peer(scrape, uid, fd);
        return;
    }
    *scraper = (struct scraper){
        .scrape = scrape, .next = scrape->scrapers, .holds = 1, .fd = fd, .uid = uid, .pid = pid};
    scrape->scrapers = scraper;
    scrape->scrapers_count++;
    scraper->watch = attnd_loop_watch_fd(loop, fd, POLLIN, on_readable, scraper);
    scraper->timer =
        attnd_loop_watch_timer(loop, attnd_clock_ns() + PATIENCE_NS, on_timer, scraper);
    if (!scraper->watch || !scraper->timer) {
        end(scraper);
        return;
    }
    struct scraper *gone = scrape->scrapers_count > SCRAPERS_MAX ? one_too_many(scrape) : NULL;
    if (gone)
        end(gone);
    if (gone != scraper)
        on_readable(scraper, POLLIN);
}

static void on_connection(void *context, uint32_t poll_events);

static void reopen_door(void *context)
{
    struct attnd_scrape *scrape = context;

    if (attnd_loop_resume(scrape->service->loop, scrape->watch) < 0)
        attnd_loop_timer_set(scrape->service->loop, scrape->timer, attnd_clock_ns() + PAUSE_NS);
}

static void watch_door(struct attnd_scrape *scrape)
{
    struct attnd_loop *loop = scrape->service->loop;

    scrape->timer = attnd_loop_timer_new(loop, reopen_door, scrape);
    if (scrape->timer)
        scrape->watch =
            attnd_loop_watch_fd(loop, scrape->listener.fd, POLLIN, on_connection, scrape);
}

/* Out of descriptors, or of room to close some: it would wake the loop again at once. */
static void pause_door(struct attnd_scrape *scrape)
{
    attnd_loop_pause(scrape->service->loop, scrape->watch);
    attnd_loop_timer_set(scrape->service->loop, scrape->timer, attnd_clock_ns() + PAUSE_NS);
}

static void on_connection(void *context, uint32_t poll_events)
{
    struct attnd_scrape *scrape = context;

    (void)poll_events;
    if (scrape->path[0] && attnd_discard_full(ATTND_DISCARD_STRANGERS)) {
        pause_door(scrape);
        return;
    }
    int fd = accept4(scrape->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        welcome(scrape, fd);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        pause_door(scrape);
}

static int listen_loopback(struct attnd_scrape *scrape, struct sockaddr_in *address)
{
    const int yes = 1, patience_s = REQUEST_S;
    socklen_t bytes = sizeof(*address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    scrape->listener.fd = fd;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
        bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &patience_s, sizeof(patience_s)) < 0 ||
        listen(fd, BACKLOG) < 0 || getsockname(fd, (struct sockaddr *)address, &bytes) < 0)
        return -ATTND_E_SYSTEM;
    attnd_log(ATTND_LOG_INFO, "metrics at http://127.0.0.1:%u/metrics", ntohs(address->sin_port));
    return 0;
}

static int open_door(struct attnd_scrape *scrape, const char *where, mode_t mode)
{
    struct sockaddr_in loopback;
    struct attnd_fault fault = {0};
    int rc = attnd_scrape_where(where, &loopback);

    if (rc == 1) {
        rc = listen_loopback(scrape, &loopback);
        (void)attnd_fault_set(&fault, rc, ATTND_F_SOCKET, 0, errno, 0);
    } else if (rc == 0) {
        rc = attnd_listen_stream(where, mode, &scrape->listener, &fault);
        if (rc == 0) {
            memcpy(scrape->path, where, strlen(where) + 1);
            attnd_log(ATTND_LOG_INFO, "metrics at the socket %s", where);
        }
    }
    if (rc < 0)
        attnd_log(ATTND_LOG_ERROR, "no metrics at %s: %s", where,
                  rc == -ATTND_E_SYSTEM ? strerror((int)fault.value) : attnd_error_text(rc));
    return rc;
}

int attnd_scrape_start(struct attnd_service *service, const char *where, mode_t mode,
                       struct attnd_scrape **out)
{
    struct attnd_scrape *scrape = calloc(1, sizeof(*scrape));

    if (!scrape)
        return -ATTND_E_NO_MEMORY;
    scrape->service = service;
    scrape->listener.fd = -1;
    *out = scrape;
    int rc = open_door(scrape, where, mode);
    if (rc < 0)
        return rc;
    watch_door(scrape);
    return scrape->watch ? 0 : -ATTND_E_NO_MEMORY;
}

void attnd_scrape_stop(struct attnd_scrape *scrape)
{
    if (!scrape)
        return;
    if (scrape->path[0])
        attnd_listen_unlink(&scrape->listener, scrape->path);
    attnd_loop_unwatch(scrape->service->loop, scrape->watch, NULL, NULL);
    attnd_loop_unwatch(scrape->service->loop, scrape->timer, NULL, NULL);
    scrape->watch = scrape->timer = NULL;
    for (struct scraper *scraper = scrape->scrapers, *next; scraper; scraper = next) {
        next = scraper->next;
        end(scraper);
    }
}

void attnd_scrape_free(struct attnd_scrape *scrape)
{
    if (!scrape)
        return;
    if (scrape->listener.fd >= 0)
        close(scrape->listener.fd);
    free(scrape->text);
    free(scrape);
}
