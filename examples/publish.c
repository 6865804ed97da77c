/* A producer in C: each line of stdin becomes a message, over HTTP on a unix socket. It needs no library.
 *
 *     yirangmq serve --http unix:yirang-data/http.sock &
 *     cc -o publish examples/publish.c
 *     printf '{"n": 1}\n{"n": 2}\n' | ./publish yirang-data/http.sock mail
 *
 * Needs a C compiler. Status 200 means that the message is on disk; the program stops at the first line that gets another status. One
 * connection carries all requests. The server closes it when it is idle for long, and when it stops: then the program
 * connects again and repeats the request. Each message has an id of ours, so a repeated one is not stored twice. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct link {
    FILE *in, *out;
};

static int open_link(struct link *server, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    if (strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "publish: %s is too long for a unix socket\n", path);
        return 0;
    }
    strcpy(address.sun_path, path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        return 0;
    }
    server->in = fdopen(fd, "r");
    server->out = fdopen(dup(fd), "w");
    return server->in != NULL && server->out != NULL;
}

static void close_link(struct link *server) {
    fclose(server->in);
    fclose(server->out);
}

/* Send one request and return the status of the answer, or 0 if the connection ended. The body of the answer, which
 * names the message or the error, goes into body. */
static int publish(struct link *server, const char *queue, const char *id, const char *text, size_t size, char *body,
                   size_t room) {
    char line[1024];
    int status = 0;
    size_t length = 0, kept;

    fprintf(server->out, "POST /v1/queues/%s/messages HTTP/1.1\r\nHost: localhost\r\n", queue);
    fprintf(server->out, "X-MQ-Message-Id: %s\r\nContent-Type: application/json\r\n", id);
    fprintf(server->out, "Content-Length: %zu\r\n\r\n", size);
    fwrite(text, 1, size, server->out);
    if (fflush(server->out) != 0 || fgets(line, sizeof line, server->in) == NULL)
        return 0;
    if (sscanf(line, "HTTP/1.1 %d", &status) != 1)
        return 0;
    while (fgets(line, sizeof line, server->in) != NULL && strcmp(line, "\r\n") != 0)
        if (strncasecmp(line, "content-length:", 15) == 0)
            length = strtoul(line + 15, NULL, 10);
    kept = fread(body, 1, length < room ? length : room - 1, server->in);
    body[kept] = '\0';
    for (; kept < length; kept++)
        if (fgetc(server->in) == EOF)
            return 0;
    return status;
}

int main(int argc, char **argv) {
    char *text = NULL, id[64], answer[4096];
    size_t room = 0;
    ssize_t size;
    long published = 0, started = (long)time(NULL);
    int status;
    struct link server;

    if (argc != 3) {
        fprintf(stderr, "usage: publish SOCKET QUEUE < LINES\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN); /* a closed connection is an error of fflush instead */
    if (!open_link(&server, argv[1]))
        return 1;
    while ((size = getline(&text, &room, stdin)) > 0) {
        if (text[size - 1] == '\n')
            size--;
        snprintf(id, sizeof id, "%ld-%ld-%ld", started, (long)getpid(), published);
        answer[0] = '\0';
        status = publish(&server, argv[2], id, text, (size_t)size, answer, sizeof answer);
        if (status == 0) {
            close_link(&server);
            if (!open_link(&server, argv[1]))
                return 1;
            status = publish(&server, argv[2], id, text, (size_t)size, answer, sizeof answer);
        }
        if (status != 200) {
            fprintf(stderr, "publish: status %d: %s; %ld before it are on disk\n", status, answer, published);
            return 1;
        }
        published++;
    }
    printf("%ld on disk\n", published);
    return 0;
}
