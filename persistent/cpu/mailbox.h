/*
 * mailbox.h - doorbells to runs, ends of runs to answers.
 */
#ifndef ATTND_PERSISTENT_CPU_MAILBOX_H
#define ATTND_PERSISTENT_CPU_MAILBOX_H

#include "persistent/cpu/state.h"

int attnd_cpu_mail_init(struct attnd_backend *backend);
void attnd_cpu_mail_free(struct attnd_backend *backend);

/** attnd_cpu_mail_scan() - begin what is rung. Threads: the dispatcher.
 * Return: 1 if a run was published. */
int attnd_cpu_mail_scan(struct attnd_backend *backend);

/** attnd_cpu_mail_done() - a prepared run has ended: answer, and let the lane go on. Threads: any.
 * The slot may be opened again before this returns. */
void attnd_cpu_mail_done(struct attnd_backend *backend, struct attnd_cpu_run *run);

/** attnd_cpu_mail_answer() - lock held. @code: ATTND_E_*, 0: done. */
void attnd_cpu_mail_answer(struct attnd_cpu_mail *mail, uint32_t mailbox, uint32_t lane,
                           uint32_t code);

#endif
