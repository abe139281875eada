/* Strikes a process at one of its system calls on a store. Preloaded (LD_PRELOAD); idle until `strike_at` is called.

   On a file a call counts if its path holds the name of `strike_at`: writes, truncations, syncs and locks. On a server, whose name is
   ":PORT", what is sent to it and received from it. A struck write can be half done. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { BEFORE, HALF, AFTER, INTERRUPT };

static char name[256];
static long target = -1;
static int mode;
static atomic_long passed, dirty;

void strike_at(const char *part, long at, int how) {
    atomic_store(&passed, 0);
    atomic_store(&dirty, 0);
    target = at;
    mode = how;
    strncpy(name, part, sizeof name - 1);
}

long strike_passed(void) { return atomic_load(&passed); }
long strike_unsynced(void) { return atomic_load(&dirty); }

static int is_server(int fd, int port) {
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sin_family == AF_INET && ntohs(peer.sin_port) == port;
}

static int holds(int fd, const char *part) {
    if (part[0] == ':') return is_server(fd, atoi(part + 1));
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

/* Whether this call is the target: then the process is struck here, or after half or all of the call. */
static int is_struck(int fd) {
    if (!name[0] || !holds(fd, name) || atomic_fetch_add(&passed, 1) != target) return 0;
    if (mode == INTERRUPT) kill(getpid(), SIGINT);
    if (mode == BEFORE) kill(getpid(), SIGKILL);
    return mode == HALF || mode == AFTER;
}

static void end(int struck) {
    if (struck) kill(getpid(), SIGKILL);
}

static void wrote(int fd) {
    if (name[0] && holds(fd, name) && !holds(fd, "-shm")) atomic_fetch_add(&dirty, 1);
}

#define REAL(type, function, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #function)

#define WRITE_AT(function, offset_type) \
    ssize_t function(int fd, const void *bytes, size_t size, offset_type at) { \
        REAL(ssize_t, function, int, const void *, size_t, offset_type); \
        int struck = is_struck(fd); \
        ssize_t done = real(fd, bytes, struck && mode == HALF ? size / 2 : size, at); \
        end(struck); \
        wrote(fd); \
        return done; \
    }
WRITE_AT(pwrite, off_t)
WRITE_AT(pwrite64, off64_t)

ssize_t write(int fd, const void *bytes, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    int struck = is_struck(fd);
    ssize_t done = real(fd, bytes, struck && mode == HALF ? size / 2 : size);
    end(struck);
    wrote(fd);
    return done;
}

ssize_t send(int fd, const void *bytes, size_t size, int flags) {
    REAL(ssize_t, send, int, const void *, size_t, int);
    int struck = is_struck(fd);
    ssize_t done = real(fd, bytes, struck && mode == HALF ? size / 2 : size, flags);
    end(struck);
    return done;
}

ssize_t recv(int fd, void *bytes, size_t size, int flags) {
    REAL(ssize_t, recv, int, void *, size_t, int);
    int struck = is_struck(fd);
    ssize_t done = real(fd, bytes, struck && mode == HALF ? size / 2 : size, flags);
    end(struck);
    return done;
}

#define ON_FILE(function, is_sync) \
    int function(int fd) { \
        REAL(int, function, int); \
        int struck = is_struck(fd); \
        int done = real(fd); \
        end(struck); \
        if (is_sync && name[0] && holds(fd, name)) atomic_store(&dirty, 0); \
        return done; \
    }
ON_FILE(fsync, 1)
ON_FILE(fdatasync, 1)

#define TRUNCATE(function, offset_type) \
    int function(int fd, offset_type size) { \
        REAL(int, function, int, offset_type); \
        int struck = is_struck(fd); \
        int done = real(fd, size); \
        end(struck); \
        return done; \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define CONTROL(function) \
    int function(int fd, int command, ...) { \
        REAL(int, function, int, int, ...); \
        va_list list; \
        va_start(list, command); \
        void *given = va_arg(list, void *); \
        va_end(list); \
        int is_lock = command == F_SETLK || command == F_SETLKW; \
        int struck = is_lock && is_struck(fd); \
        int done = real(fd, command, given); \
        end(struck); \
        return done; \
    }
CONTROL(fcntl)
CONTROL(fcntl64)
