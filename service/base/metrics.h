/*
 * metrics.h - a status as text for Prometheus; the daemon serves it, and attnctl prints it.
 */
#ifndef ATTND_SERVICE_BASE_METRICS_H
#define ATTND_SERVICE_BASE_METRICS_H

#include "schemas/attnd.pb-c.h"

#include <stdio.h>

/** attnd_metrics_print() - in the text exposition format, version 0.0.4
 * @status: histograms, sessions and pools may be absent
 * Errors stay in @out. */
void attnd_metrics_print(FILE *out, const Attnd__Status *status);

#endif
