/* A driver library behind the real pynvml: one L4, whose used MiB (or `lost`) stand in the file FAKE_NVML. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef void *device;
enum { LOST = 15, UUID_SIZE = 9 };
static long used_mib(void) {  /* -1: the card is lost */
  char text[32] = {0};
  int file = open(getenv("FAKE_NVML"), O_RDONLY);
  if (file < 0 || read(file, text, 31) < 0) return -1;
  close(file);
  return strncmp(text, "lost", 4) ? atol(text) : -1;
}
static int answer(void) { return used_mib() < 0 ? LOST : 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return answer(); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *card) { *card = (device)1; return answer(); }
int nvmlDeviceGetHandleByUUID(const char *uuid, device *card) { *card = (device)1; return answer(); }
int nvmlDeviceGetUUID(device card, char *text, unsigned size) { strncpy(text, "GPU-fake", size); return answer(); }
int nvmlDeviceGetName(device card, char *text, unsigned size) { strncpy(text, "NVIDIA L4", size); return answer(); }
int nvmlDeviceGetCudaComputeCapability(device card, int *major, int *minor) {
  *major = 8; *minor = 9; return answer();
}
int nvmlDeviceGetMemoryInfo(device card, unsigned long long *total_free_used) {
  total_free_used[0] = 23034ULL << 20;
  total_free_used[2] = (unsigned long long)used_mib() << 20;
  total_free_used[1] = total_free_used[0] - total_free_used[2];
  return answer();
}
int nvmlDeviceGetComputeRunningProcesses_v3(device card, unsigned *count, void *found) {
  *count = 0; return answer();  /* as in a container, where the host's pids are not ours */
}
