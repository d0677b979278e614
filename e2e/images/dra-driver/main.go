// A driver of dynamic resources: upstream's library registers it with the kubelet, publishes its devices and reads claims,
// and this program makes a CDI device of each claim.
//
// Calls are written to ROOT/plugins/DRIVER/calls.log, a line a claim; as long as there is a file "refuse" beside it, every
// claim is refused.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// kind of the devices in the names that the runtime knows them by.
const kind = "ironclad.test/device"

type driver struct {
	name string
	// folder of the driver's socket and log.
	folder string
	// cdi is the folder in which the runtime finds devices.
	cdi string
}

func (d *driver) log(call string, claim types.NamespacedName) {
	file, err := os.OpenFile(filepath.Join(d.folder, "calls.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		klog.ErrorS(err, "Failed to write down a call")
		return
	}
	defer file.Close()
	fmt.Fprintln(file, call, claim.Name)
}

func (d *driver) spec(claim types.UID) string {
	return filepath.Join(d.cdi, fmt.Sprintf("%s-%s.json", d.name, claim))
}

// prepare makes one CDI device of all that a claim has of this driver: a variable tells the container which those are.
func (d *driver) prepare(claim *resource.ResourceClaim) kubeletplugin.PrepareResult {
	d.log("prepare", types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	if _, err := os.Stat(filepath.Join(d.folder, "refuse")); err == nil {
		return kubeletplugin.PrepareResult{Err: errors.New("the device is busy")}
	}
	id := string(claim.UID)
	var devices []kubeletplugin.Device
	names := ""
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name {
			continue
		}
		names += " " + result.Device
		devices = append(devices, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CDIDeviceIDs: []string{kind + "=" + id},
		})
	}
	edits := map[string]any{"env": []string{"DEVICES=" + names}}
	spec := map[string]any{
		"cdiVersion": "0.3.0",
		"kind":       kind,
		"devices":    []any{map[string]any{"name": id, "containerEdits": edits}},
	}
	text, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(d.spec(claim.UID), text, 0o600)
	}
	return kubeletplugin.PrepareResult{Err: err, Devices: devices}
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult)
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error)
	for _, claim := range claims {
		d.log("unprepare", claim.NamespacedName)
		err := os.Remove(d.spec(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	klog.ErrorS(err, message)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func fail(err error) {
	if err != nil {
		klog.ErrorS(err, "Failed to start")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func main() {
	klog.InitFlags(nil)
	config := flag.String("kubeconfig", "", "Absolute path to the kubeconfig, outside of a cluster.")
	root := flag.String("root-dir", "/var/lib/kubelet", "Root directory of the kubelet.")
	cdi := flag.String("cdi-dir", "/var/run/cdi", "Folder in which the runtime looks for CDI devices.")
	name := flag.String("driver-name", "", "Name of the driver.")
	node := flag.String("node-name", "", "Name of the node.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	rest, err := clientcmd.BuildConfigFromFlags("", *config)
	fail(err)
	kube, err := kubernetes.NewForConfig(rest)
	fail(err)
	d := &driver{name: *name, folder: filepath.Join(*root, "plugins", *name), cdi: *cdi}
	fail(os.MkdirAll(d.folder, 0o750))
	fail(os.MkdirAll(d.cdi, 0o755))
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(d.name),
		kubeletplugin.NodeName(*node),
		kubeletplugin.KubeClient(kube),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(*root, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(d.folder),
	)
	fail(err)
	defer helper.Stop()
	slice := resourceslice.Slice{Devices: []resource.Device{{Name: "zero"}}}
	fail(helper.PublishResources(ctx, resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{*node: {Slices: []resourceslice.Slice{slice}}},
	}))
	<-ctx.Done()
}
