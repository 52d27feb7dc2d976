/* refuse.h - a kernel that says no. */
#ifndef ATTND_TESTS_SUPPORT_ORACLE_REFUSE_H
#define ATTND_TESTS_SUPPORT_ORACLE_REFUSE_H

/** refuse_io_uring() - from now on io_uring_setup answers EPERM, as container runtimes have it, in
 * this process and in every child begun later. There is no way back. Return: 1, or 0 if it cannot
 * be had. */
int refuse_io_uring(void);

#endif
