/* The calls of a process that make files durable, counted; at one of them it dies, its disk is full, or its clock jumps.
   Loaded before libc (LD_PRELOAD) by scripts/campaign.py, switched on by arm() in a child. Only files below `under`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { OFF, LOG, KILL, FULL, CLOCK, BARE };
static int mode = OFF, log_fd = -1;
static long at = 0;
static char under[4096];
static atomic_long n_points, n_writes, n_looks;

void arm(int new_mode, long new_at, const char *new_under, const char *log)
{
    at = new_at;
    snprintf(under, sizeof under, "%s", new_under);
    if (log[0]) log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    n_points = n_writes = n_looks = 0;
    mode = new_mode;
}

static int inside(const char *path) { return mode && under[0] && !strncmp(path, under, strlen(under)); }

static int inside_fd(int fd)
{
    char link[64], path[4096];
    if (!mode) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return inside(path);
}

static void said(const char *what)
{
    char line[64];
    int n = snprintf(line, sizeof line, "%s\n", what);
    if (mode == LOG && log_fd >= 0) syscall(SYS_write, log_fd, line, n);
}

static void point(const char *what)
{
    long n = ++n_points;
    said(what);
    if (mode == KILL && n == at) kill(getpid(), SIGKILL);
}

static int is_full(int fd)
{
    struct stat found;
    if ((mode != LOG && mode != FULL) || !inside_fd(fd) || fstat(fd, &found) || !S_ISREG(found.st_mode)) return 0;
    long n = ++n_writes;
    said("write");
    if (mode == LOG || n < at) return 0;
    errno = ENOSPC;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int rename(const char *from, const char *to) { REAL(rename); if (inside(to)) point("rename"); return real(from, to); }
static int has_no_sync(int fd)
{
    struct stat found;
    if (mode != BARE || !inside_fd(fd) || fstat(fd, &found) || !S_ISDIR(found.st_mode)) return 0;
    errno = EINVAL;
    return 1;
}
int fsync(int fd) { REAL(fsync); if (inside_fd(fd)) point("fsync"); return has_no_sync(fd) ? -1 : real(fd); }
int link(const char *from, const char *to)
{
    REAL(link);
    if (mode != BARE || !inside(to)) return real(from, to);
    errno = EPERM;
    return -1;
}
int flock(int fd, int how)
{
    REAL(flock);
    if (mode != BARE || !at || !inside_fd(fd)) return real(fd, how);
    errno = ENOLCK;
    return -1;
}
int fdatasync(int fd) { REAL(fdatasync); if (inside_fd(fd)) point("fsync"); return real(fd); }
int unlink(const char *path)
{
    REAL(unlink);
    const char *end = strrchr(path, '-');
    if (inside(path)) point(end && !strcmp(end, "-journal") ? "commit" : "unlink"); /* SQLite commits by it */
    return real(path);
}
ssize_t write(int fd, const void *data, size_t n) { REAL(write); return is_full(fd) ? -1 : real(fd, data, n); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t to) { REAL(pwrite); return is_full(fd) ? -1 : real(fd, data, n, to); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t to) { REAL(pwrite64); return is_full(fd) ? -1 : real(fd, data, n, to); }
int clock_gettime(clockid_t id, struct timespec *now)
{
    REAL(clock_gettime);
    int found = real(id, now);
    if (mode == CLOCK && id == CLOCK_REALTIME) now->tv_sec += (++n_looks * 2654435761u + at) % 172800 - 86400;
    return found;
}
