/* A disk that syncs as slowly as it is told, and that loses at a crash what was not synced. tests/faulty_disk.py preloads it.

   Each sync of an append-only file (NAME.incr.aof) takes DISK_SYNC_US longer, and notes the file's length in NAME.incr.aof.synced.
   With DISK_LOSES=FOLDER, a store that starts cuts each append-only file in FOLDER back to that length before it reads any. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char SUFFIX[] = ".incr.aof", NOTE[] = ".synced";

static int (*real_fsync)(int), (*real_fdatasync)(int);

static int is_append_only(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < (ssize_t)sizeof SUFFIX) return 0;
    path[length] = '\0';
    return strcmp(path + length - strlen(SUFFIX), SUFFIX) == 0;
}

static int note_of(const char *path, int flags) {
    char name[PATH_MAX + sizeof NOTE];
    snprintf(name, sizeof name, "%s%s", path, NOTE);
    return open(name, flags | O_CLOEXEC, 0600);
}

static int sync_with(int (*sync)(int), int file) {
    char path[PATH_MAX];
    struct stat before;
    if (!is_append_only(file, path) || fstat(file, &before) != 0) return sync(file);
    const char *slower = getenv("DISK_SYNC_US");
    if (slower != NULL) usleep((useconds_t)atol(slower));
    int result = sync(file);
    int kept = errno;
    int note = result == 0 ? note_of(path, O_RDWR | O_CREAT) : -1;
    if (note >= 0) {
        int64_t synced = 0, length = before.st_size; /* what was written while it synced may be lost */
        if (pread(note, &synced, sizeof synced, 0) != sizeof synced || synced < length)
            if (pwrite(note, &length, sizeof length, 0) != sizeof length) abort();
        close(note);
    }
    errno = kept;
    return result;
}

int fsync(int file) { return sync_with(real_fsync, file); }
int fdatasync(int file) { return sync_with(real_fdatasync, file); }

static void lose(const char *path) {
    struct stat now;
    int64_t synced = 0;
    int note = note_of(path, O_RDONLY);
    if (note >= 0 && read(note, &synced, sizeof synced) != sizeof synced) abort();
    if (note >= 0) close(note);
    if (stat(path, &now) == 0 && now.st_size > synced && truncate(path, synced) != 0) abort();
}

__attribute__((constructor)) static void start(void) {
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *folder = getenv("DISK_LOSES"), *name = program_invocation_short_name;
    if (folder == NULL || (strcmp(name, "valkey-server") != 0 && strcmp(name, "redis-server") != 0)) return;
    char pattern[PATH_MAX];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*%s", folder, SUFFIX);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) lose(found.gl_pathv[i]);
    globfree(&found);
}
