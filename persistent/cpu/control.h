/*
 * control.h - commands about mailboxes, prepared runs and plans.
 */
#ifndef ATTND_PERSISTENT_CPU_CONTROL_H
#define ATTND_PERSISTENT_CPU_CONTROL_H

#include "persistent/cpu/mail.h"
#include "persistent/cpu/state.h"

/** attnd_cpu_mail_command() - any command but a run. Threads: the dispatcher. */
void attnd_cpu_mail_command(struct attnd_backend *backend, const struct attnd_command *command);

/** attnd_cpu_mail_held() - lock held. 1: no run of the plan may begin. */
int attnd_cpu_mail_held(const struct attnd_cpu_mail *mail, uint64_t plan_offset_bytes);

/** attnd_cpu_mail_answer_due() - answer the commands that wait for nothing any more; lock held. */
void attnd_cpu_mail_answer_due(struct attnd_backend *backend);

#endif
