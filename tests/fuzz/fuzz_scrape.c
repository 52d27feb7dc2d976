/*
 * fuzz_scrape.c - any bytes at the door of the metrics, in any pieces, and any reader of the
 * answer.
 *
 * The file itself is included: here the loop is a few functions, so that what a scraper writes is
 * read at once. A scraper gets one whole answer, or none; it is not answered before its request is
 * over, and nothing of it is left when it is gone.
 */
#include "service/daemon/scrape.c" /* NOLINT(bugprone-suspicious-include) */

#include "tests/fuzz/fuzz.h"
#include "tests/support/rigs/plan_case.h"

#define TEXT_BYTES 100000u /* more than a socket takes at once */

/* ---- what scrape.c calls ---- */

static char a_watch, a_timer;
static uint32_t watches, timers; /* that there are */
static attnd_loop_fd_fn *on_event;
static attnd_loop_timer_fn *on_time;
static void *event_context, *time_context;

struct attnd_watch *attnd_loop_watch_fd(struct attnd_loop *loop, int fd, uint32_t poll_events,
                                        attnd_loop_fd_fn *fn, void *context)
{
    (void)loop, (void)fd, (void)poll_events;
    on_event = fn;
    event_context = context;
    watches++;
    return (struct attnd_watch *)(void *)&a_watch;
}

struct attnd_watch *attnd_loop_watch_timer(struct attnd_loop *loop, uint64_t when_ns,
                                           attnd_loop_timer_fn *fn, void *context)
{
    (void)loop, (void)when_ns;
    on_time = fn;
    time_context = context;
    timers++;
    return (struct attnd_watch *)(void *)&a_timer;
}

void attnd_loop_unwatch(struct attnd_loop *loop, struct attnd_watch *watch,
                        attnd_loop_timer_fn *done, void *context)
{
    (void)loop;
    if (!watch)
        return;
    if ((void *)watch == &a_watch)
        watches--;
    else
        timers--;
    if (done)
        done(context);
}

struct attnd_watch *attnd_loop_timer_new(struct attnd_loop *loop, attnd_loop_timer_fn *fn,
                                         void *context)
{
    (void)loop, (void)fn, (void)context;
    return NULL;
}

void attnd_loop_timer_set(struct attnd_loop *loop, struct attnd_watch *timer, uint64_t when_ns)
{
    (void)loop, (void)timer, (void)when_ns;
}

void attnd_loop_pause(struct attnd_loop *loop, struct attnd_watch *watch)
{
    (void)loop, (void)watch;
}

int attnd_loop_resume(struct attnd_loop *loop, struct attnd_watch *watch)
{
    (void)loop, (void)watch;
    return 0;
}

int attnd_listen_stream(const char *path, mode_t mode, struct attnd_listen *out,
                        struct attnd_fault *fault)
{
    (void)path, (void)mode, (void)out, (void)fault;
    return -ATTND_E_SYSTEM;
}

void attnd_listen_unlink(const struct attnd_listen *listener, const char *path)
{
    (void)listener, (void)path;
}

int attnd_accept_allows(const struct attnd_options *options, uid_t uid)
{
    (void)options, (void)uid;
    return 1;
}

void attnd_control_reset(struct attnd_service *service)
{
    (void)service;
}

int attnd_call_status(struct attnd_call *call)
{
    (void)call;
    return 0;
}

void attnd_metrics_print(FILE *out, const Attnd__Status *status)
{
    (void)status;
    for (uint32_t i = 0; i < TEXT_BYTES; i++)
        (void)fputc('m', out);
}

void attnd_log(enum attnd_log_level level, const char *format, ...)
{
    (void)level, (void)format;
}

/* ---- a scraper ---- */

struct peer {
    int fd;
    char *request; /* terminated */
    size_t request_bytes, answer_bytes;
    int is_text; /* so far, as far as it was read */
};

static int over(const struct peer *peer)
{
    return strstr(peer->request, "\r\n\r\n") || strstr(peer->request, "\n\n");
}

static void write_piece(struct peer *peer, struct case_source *source)
{
    size_t piece = 1 + case_below(source, 512);
    if (piece > source->bytes_left)
        piece = source->bytes_left;
    const ssize_t sent = send(peer->fd, source->bytes, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) {
        source->bytes_left = 0;
        return;
    }
    memcpy(peer->request + peer->request_bytes, source->bytes, (size_t)sent);
    peer->request_bytes += (size_t)sent;
    peer->request[peer->request_bytes] = 0;
    source->bytes += sent;
    source->bytes_left -= (size_t)sent;
}

static void read_some(struct peer *peer, size_t most)
{
    static char bytes[1 << 16];
    const ssize_t got =
        recv(peer->fd, bytes, most < sizeof(bytes) ? most : sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0)
        return;
    fuzz_require(over(peer), "nobody is answered before the request is over");
    if (peer->answer_bytes == 0)
        fuzz_require(bytes[0] == 'H', "an answer begins with its head");
    peer->answer_bytes += (size_t)got;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct attnd_service service;
    struct attnd_scrape scrape = {.service = &service, .path = "/a", .listener = {.fd = -1}};
    struct case_source source = {.bytes = data, .bytes_left = bytes};
    struct peer peer = {.request = calloc(1, bytes + 1)};
    int ends[2];

    if (!data || !bytes) {
        free(peer.request);
        return 0;
    }
    fuzz_require(peer.request &&
                     socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
                 "a connection");
    peer.fd = ends[0];
    if (case_below(&source, 2))
        write_piece(&peer, &source);
    welcome(&scrape, ends[1]);
    while (scrape.scrapers && source.bytes_left) {
        const uint32_t what = case_below(&source, 8);
        if (what < 4)
            write_piece(&peer, &source);
        else if (what < 6)
            read_some(&peer, 1 + case_below(&source, 1u << 16));
        else if (what == 6)
            (void)shutdown(peer.fd, SHUT_WR);
        on_event(event_context, POLLIN | POLLOUT);
    }
    for (uint32_t i = 0; scrape.scrapers && i < 64; i++) {
        read_some(&peer, 1u << 16);
        on_event(event_context, POLLIN | POLLOUT);
    }
    if (scrape.scrapers) /* its request is not over: patience is */
        on_time(time_context);
    timers = 0; /* one that has fired */
    fuzz_require(scrape.scrapers == NULL && scrape.scrapers_count == 0 && watches == 0,
                 "nothing is left of it");
    close(peer.fd);
    free(peer.request);
    free(scrape.text);
    return 0;
}
