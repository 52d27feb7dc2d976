/*
 * wakes.c - whoever makes a wake-up long pays for it.
 *
 * What is measured is this thread's time on a processor: to be preempted by the one who is woken is
 * no fault of his. A user is slow for as long as the service knows of that user: sessions come and
 * go, and each would be slow once more. Its other processes have a thread each, and do not wait.
 */
#include "service/objects/wakes.h"

#include "ipc/courier.h"
#include "ipc/fdpass.h"
#include "schemas/atomics.h"

#include <sys/socket.h>

#define SLOW_NS 300000u

static int is_slow(const struct attnd_client *client)
{
    return client->account.user && client->account.user->slow;
}

static void note(const struct attnd_client *client, const char *what, uint64_t begin_ns)
{
    const uint64_t took_ns = attnd_thread_clock_ns() - begin_ns;

    if (took_ns < SLOW_NS || !client->account.user || client->account.user->slow)
        return;
    client->account.user->slow = 1;
    attnd_log(ATTND_LOG_WARNING,
              "session %u: pid %d (%s): %s took %llu us, so many wait for it: threads wake "
              "processes of user %u from now on",
              client->id, (int)client->pid, attnd_client_name(client), what,
              (unsigned long long)(took_ns / 1000u), (unsigned)client->uid);
}

/* Return: the line that is to be used; NULL: none. */
static struct attnd_courier_line *line_of(const struct attnd_client *client,
                                          struct attnd_courier_line **line, int fd)
{
    if (!*line && is_slow(client) && fd >= 0)
        *line = attnd_courier_new(client->pid ? (uint32_t)client->pid : client->uid, fd);
    return *line;
}

void attnd_client_knock(struct attnd_client *client)
{
    const struct attnd_submit_head *head = client->submission.address;
    const struct attnd_doorbell doorbell = {.need = &head->cq_need, .fd = client->notify_fd};

    attnd_fence_full(); /* F2 */
    if (!attnd_peek32(doorbell.need))
        return;
    struct attnd_courier_line *line = line_of(client, &client->knocks, client->notify_fd);
    if (line) {
        attnd_courier_knock(line);
        return;
    }
    const uint64_t begin_ns = attnd_thread_clock_ns();
    (void)attnd_doorbell_ring(&doorbell);
    note(client, "a wake-up", begin_ns);
}

int attnd_client_send(struct attnd_client *client, const void *data, size_t bytes, const int *fds,
                      int fds_count)
{
    struct attnd_courier_line *line = line_of(client, &client->replies, client->socket);

    if (line)
        return attnd_courier_send(line, data, bytes, fds, fds_count);
    const uint64_t begin_ns = attnd_thread_clock_ns();
    const int rc = attnd_fdpass_send(client->socket, data, bytes, fds, fds_count);
    note(client, "a reply", begin_ns);
    return rc;
}

void attnd_client_hang_up(struct attnd_client *client)
{
    struct attnd_courier_line *line = line_of(client, &client->replies, client->socket);

    attnd_courier_end(client->knocks, 0);
    client->knocks = client->replies = NULL;
    if (line) {
        attnd_courier_end(line, 1);
        return;
    }
    const uint64_t begin_ns = attnd_thread_clock_ns();
    shutdown(client->socket, SHUT_RDWR);
    note(client, "the end", begin_ns);
}
