/*
 * doorbell.c - the thread that sleeps until somebody rings.
 *
 * Tile workers sleep in the port, on the daemon's word; engines ring elsewhere, one word a mailbox.
 * One thread sleeps on all of those words at once (futex_waitv) and kicks the port when one has
 * moved; the thread that has the dispatcher's role then looks at the doorbells. Where the kernel
 * cannot sleep on many words, short naps stand in. A doorbell is written before its mailbox's
 * count, and the count is compared by the kernel after this thread has read it, so no ring is slept
 * through.
 */
#include <limits.h>
#include <time.h>

#include "persistent/cpu/doorbell.h"
#include "persistent/cpu/mail.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"

#define NAP_NS 100000

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

/* As struct futex_waitv of Linux 5.16, which older headers lack. */
struct wait_word {
    uint64_t value, address;
    uint32_t flags, zero;
};
#define WORD_32_BITS 2u

/* One more than mailboxes that are watched at once, at most what the kernel takes. */
#define WORDS_MAX 128u

static void add(struct wait_word *words, uint32_t *count, const uint32_t *word, uint32_t value)
{
    if (*count < WORDS_MAX)
        words[(*count)++] = (struct wait_word){
            .value = value, .address = (uint64_t)(uintptr_t)word, .flags = WORD_32_BITS};
}

/* Return: 1 if somebody has rung since the last time. */
static int listen(struct attnd_cpu_mail *mail, struct wait_word *words, uint32_t *count)
{
    int rung = 0;
    *count = 0;
    (void)pthread_mutex_lock(&mail->lock);
    add(words, count, &mail->doorbell_word, attnd_observe32(&mail->doorbell_word));
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++) {
        struct attnd_cpu_mailbox *mailbox = &mail->mailboxes[i];
        if (mailbox->box == NULL)
            continue;
        uint32_t now = attnd_observe32(&mailbox->box->rung);
        rung |= now != mailbox->heard;
        mailbox->heard = now;
        add(words, count, &mailbox->box->rung, now);
    }
    (void)pthread_mutex_unlock(&mail->lock);
    return rung;
}

/* A mailbox may be unmapped before the call: the kernel says so, and the next look leaves it out.
 */
static void sleep_on(const struct wait_word *words, uint32_t count)
{
    static const struct timespec nap = {.tv_nsec = NAP_NS};
    if (syscall(SYS_futex_waitv, words, count, 0, NULL, 0) < 0 && errno != EAGAIN &&
        errno != EINTR && errno != EFAULT)
        (void)nanosleep(&nap, NULL);
}

static void *doorbell_main(void *argument)
{
    struct attnd_backend *backend = argument;
    struct attnd_cpu_mail *mail = backend->mail;
    struct wait_word words[WORDS_MAX];
    uint32_t count;
    for (;;) {
        if (listen(mail, words, &count))
            backend->port->kick(backend->port->context);
        if (attnd_observe32(
                &mail->doorbell_stop)) /* after doorbell_word, which is moved after it */
            return NULL;
        sleep_on(words, count);
    }
}

void attnd_cpu_doorbell_watch(struct attnd_cpu_mail *mail)
{
    (void)attnd_arrive32(&mail->doorbell_word, 1);
    (void)attnd_futex_wake(&mail->doorbell_word, INT_MAX);
}

int attnd_cpu_doorbell_start(struct attnd_backend *backend)
{
    struct attnd_cpu_mail *mail = backend->mail;
    attnd_poke32(&mail->doorbell_stop, 0);
    if (pthread_create(&mail->doorbell, NULL, doorbell_main, backend) != 0)
        return -ATTND_E_SYSTEM;
    (void)pthread_setname_np(mail->doorbell, "doorbell");
    mail->doorbell_runs = 1;
    return 0;
}

void attnd_cpu_doorbell_stop(struct attnd_backend *backend)
{
    struct attnd_cpu_mail *mail = backend->mail;
    if (!mail->doorbell_runs)
        return;
    attnd_publish32(&mail->doorbell_stop, 1);
    attnd_cpu_doorbell_watch(mail);
    (void)pthread_join(mail->doorbell, NULL);
    mail->doorbell_runs = 0;
}
