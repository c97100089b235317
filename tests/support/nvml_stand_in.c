/* A stand-in for NVIDIA's management library: the calls that the agent makes, answered from the file that the
 * variable NVML_STAND_IN names. Its lines, fields between bars:
 *   init|CODE                     what nvmlInit_v2 answers; "hang": it never does
 *   driver|VERSION    cuda|12040
 *   card|NAME|UUID|BYTES|CODE     CODE: what asking for its memory answers
 *   mig|CARD|NAME|UUID|BYTES      an instance; a card that has one, or "mig|CARD", is cut
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char name[96], uuid[96]; unsigned long long bytes; int code, parent, cut; } Card;
typedef struct { unsigned long long total, free, used; } Memory;
static Card cards[16], parts[32];
static int card_count, part_count, init_code, cuda = -1;
static char driver[96];

static char *field(char **rest) {
    char *found = strsep(rest, "|");
    return found ? found : "";
}

int nvmlInit_v2(void) {
    char line[512], *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 9;
    card_count = part_count = init_code = 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *rest = line, *kind = field(&rest);
        if (!strcmp(kind, "init")) {
            char *code = field(&rest);
            if (!strcmp(code, "hang")) for (;;) pause();
            init_code = atoi(code);
        } else if (!strcmp(kind, "driver")) strncpy(driver, field(&rest), 95);
        else if (!strcmp(kind, "cuda")) cuda = atoi(field(&rest));
        else if (!strcmp(kind, "card")) {
            Card *card = &cards[card_count++];
            strncpy(card->name, field(&rest), 95);
            strncpy(card->uuid, field(&rest), 95);
            card->bytes = strtoull(field(&rest), NULL, 10);
            card->code = atoi(field(&rest));
        } else if (!strcmp(kind, "mig")) {
            int parent = atoi(field(&rest));
            cards[parent].cut = 1;
            char *name = field(&rest);
            if (*name) {
                Card *part = &parts[part_count++];
                part->parent = parent;
                strncpy(part->name, name, 95);
                strncpy(part->uuid, field(&rest), 95);
                part->bytes = strtoull(field(&rest), NULL, 10);
            }
        }
    }
    fclose(file);
    return init_code;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 4 ? "Insufficient Permissions" : code == 15 ? "GPU is lost"
         : code == 18 ? "RM has detected an NVML/RM version mismatch." : code == 3 ? "Not Supported" : "Unknown Error";
}
static int put(char *to, unsigned size, const char *text) { strncpy(to, text, size - 1); to[size - 1] = 0; return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return put(to, size, driver); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = cuda; return cuda < 0 ? 3 : 0; }
int nvmlDeviceGetCount_v2(unsigned *to) { *to = card_count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **to) { *to = &cards[index]; return cards[index].code == 15 ? 15 : 0; }
int nvmlDeviceGetName(Card *card, char *to, unsigned size) { return put(to, size, card->name); }
int nvmlDeviceGetUUID(Card *card, char *to, unsigned size) { return put(to, size, card->uuid); }
int nvmlDeviceGetMemoryInfo(Card *card, Memory *to) {
    memset(to, 0, sizeof *to);
    to->total = card->bytes;
    return card->code;
}
int nvmlDeviceGetMigMode(Card *card, unsigned *now, unsigned *later) { *now = *later = card->cut; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(Card *card, unsigned *to) { (void)card; *to = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(Card *card, unsigned index, Card **to) {
    int seen = 0;
    for (int i = 0; i < part_count; i++)
        if (&cards[parts[i].parent] == card && seen++ == (int)index) { *to = &parts[i]; return 0; }
    return 6;
}
