/* SPDX-License-Identifier: MIT OR Apache-2.0
 * The agent of `rocebud interop`: what runs on both ends of a test, on any verbs device. Plain libibverbs and
 * librdmacm. The runner speaks first: "rocebud-interop VERSION KIND", and the agent answers "ok" or says why not. */
#ifndef ROCEBUD_INTEROP_AGENT_H
#define ROCEBUD_INTEROP_AGENT_H

#include <stddef.h>
#include <stdio.h>

/* The runner's number must be the same: an agent of another version is refused, and refuses. */
#define AGENT_VERSION 1

/* Reads a line without its newline into `line`; 0 at the end of the stream or when it does not fit. */
int read_line(int fd, char *line, size_t room);
/* Writes all of it, or ends the process: the runner is gone. */
void write_all(int fd, const void *bytes, size_t n);
/* One line to the runner. */
void say(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs scenarios that the runner asks for, line by line, until the stream ends. */
int scenarios(int in, int out);

#endif
