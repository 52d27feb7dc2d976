/*
 * wakes.c - whoever makes a wake-up long pays for it.
 *
 * What is measured is this thread's time on a processor: to be preempted by the one who is woken is
 * no fault of his. It is owed by the session and by its user, and forgiven slowly. A session that
 * owes too much has a thread of its process' from then on. Sessions come and go, and each would owe
 * once more; so when its user owes too much, all of the user's have threads, one a process. A
 * machine that takes the processor away from us for a moment makes nobody owe as much.
 */
#include "service/objects/wakes.h"

#include "ipc/courier.h"
#include "ipc/fdpass.h"
#include "ipc/wake.h"
#include "schemas/atomics.h"

#include <sys/socket.h>

#define LONG_NS 200000u /* from here on it is owed */
#define SESSION_OWES_MAX_NS 3000000u
#define USER_OWES_MAX_NS 30000000u
#define FORGIVEN_RATE 10000u /* of the thread's time, wake-ups may take so small a part */

static uint64_t owed_ns(const struct attnd_account *account)
{
    return attnd_debt_owed_ns(&account->wakes, attnd_clock_ns(), FORGIVEN_RATE);
}

static int owes_more(const struct attnd_account *account, uint64_t max_ns)
{
    return account->wakes.owed_ns > max_ns && owed_ns(account) > max_ns;
}

static int is_slow(const struct attnd_client *client)
{
    const struct attnd_account *user = client->account.user;

    return owes_more(&client->account, SESSION_OWES_MAX_NS) ||
           (user && owes_more(user, USER_OWES_MAX_NS));
}

/* What took from @begin_ns on. */
static void note(struct attnd_client *client, uint64_t begin_ns)
{
    const uint64_t took_ns = attnd_thread_clock_ns() - begin_ns, now_ns = attnd_clock_ns();

    if (took_ns < LONG_NS)
        return;
    attnd_debt_add(&client->account.wakes, now_ns, FORGIVEN_RATE, took_ns);
    if (client->account.user)
        attnd_debt_add(&client->account.user->wakes, now_ns, FORGIVEN_RATE, took_ns);
}

/* Return: the line that is to be used; NULL: none. What was sent through it goes first, so it is
 * used to the end. */
static struct attnd_courier_line *line_of(const struct attnd_client *client,
                                          struct attnd_courier_line **line, int fd)
{
    if (!*line && fd >= 0 && is_slow(client))
        *line = attnd_courier_new(client->pid ? (uint32_t)client->pid : client->uid, fd);
    return *line;
}

/* As line_of(), and the first one of a session is told: from then on its user may see it wait. */
static struct attnd_courier_line *told_line_of(const struct attnd_client *client,
                                               struct attnd_courier_line **line, int fd)
{
    const int was_told = client->knocks || client->replies;

    if (line_of(client, line, fd) && !was_told)
        attnd_log(ATTND_LOG_WARNING,
                  "session %u: pid %d (%s): so many wait for it, or for others of its user, that "
                  "wake-ups took %llu us too long: a thread wakes it from now on",
                  client->id, (int)client->pid, attnd_client_name(client),
                  (unsigned long long)(owed_ns(client->account.user ? client->account.user
                                                                    : &client->account) /
                                       1000u));
    return *line;
}

void attnd_client_knock(struct attnd_client *client)
{
    const struct attnd_submit_head *head = client->submission.address;
    const struct attnd_doorbell doorbell = {.need = &head->cq_need, .fd = client->notify_fd};

    attnd_fence_full(); /* F2 */
    if (!attnd_peek32(doorbell.need))
        return;
    struct attnd_courier_line *line = told_line_of(client, &client->knocks, client->notify_fd);
    if (line) {
        attnd_courier_knock(line);
        return;
    }
    const uint64_t begin_ns = attnd_thread_clock_ns();
    (void)attnd_doorbell_ring(&doorbell);
    note(client, begin_ns);
}

int attnd_client_send(struct attnd_client *client, const void *data, size_t bytes, const int *fds,
                      int fds_count)
{
    struct attnd_courier_line *line = told_line_of(client, &client->replies, client->socket);

    if (line)
        return attnd_courier_send(line, data, bytes, fds, fds_count);
    const uint64_t begin_ns = attnd_thread_clock_ns();
    const int rc = attnd_fdpass_send(client->socket, data, bytes, fds, fds_count);
    note(client, begin_ns);
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
    note(client, begin_ns);
}
