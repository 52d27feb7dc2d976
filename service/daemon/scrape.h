/*
 * scrape.h - metrics for Prometheus over HTTP, on a unix socket or on loopback.
 */
#ifndef ATTND_SERVICE_DAEMON_SCRAPE_H
#define ATTND_SERVICE_DAEMON_SCRAPE_H

#include "service/service.h"

#include <netinet/in.h>

struct attnd_scrape;

/**
 * attnd_scrape_where() - a path with a slash in it, or 127.0.0.1:PORT; port 0 is any that is free
 * @loopback: filled for the second; may be NULL
 * Return: 1 it is loopback; 0 it is a path; -ATTND_E_INVALID it is neither.
 */
int attnd_scrape_where(const char *where, struct sockaddr_in *loopback);

/**
 * attnd_scrape_start() - serve at @where
 * @mode: of the file, if it is a path
 *
 * A scraper has 5 s for a request and its answer, and is dropped then. Over the unix socket the
 * users that the service admits are answered, and root; over loopback every user of the machine.
 * Return: 0; -ATTND_E_* (logged).
 */
int attnd_scrape_start(struct attnd_service *service, const char *where, mode_t mode,
                       struct attnd_scrape **out);

/** attnd_scrape_stop() - drop everybody; the loop still is. NULL is fine. */
void attnd_scrape_stop(struct attnd_scrape *scrape);

/** attnd_scrape_free() - after the loop is gone. NULL is fine. */
void attnd_scrape_free(struct attnd_scrape *scrape);

#endif
