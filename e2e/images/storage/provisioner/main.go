// A provisioner of CSI volumes: the library's controller decides when a claim gets a volume and when one goes, and this
// program asks the driver's controller service for it.
package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

type provisioner struct {
	driver    string
	volumes   csi.ControllerClient
	kube      kubernetes.Interface
	snapshots snapshots.Interface
}

var modes = map[core.PersistentVolumeAccessMode]csi.VolumeCapability_AccessMode_Mode{
	core.ReadWriteOnce:    csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	core.ReadWriteOncePod: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	core.ReadOnlyMany:     csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	core.ReadWriteMany:    csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
}

func (p *provisioner) SupportsBlock(context.Context) bool { return true }

// capabilities of a claim's volume, one for each access mode.
func capabilities(claim *core.PersistentVolumeClaim, fsType string, options []string) []*csi.VolumeCapability {
	var all []*csi.VolumeCapability
	for _, mode := range claim.Spec.AccessModes {
		capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: modes[mode]}}
		if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == core.PersistentVolumeBlock {
			capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		} else {
			mount := &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: options}
			capability.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
		}
		all = append(all, capability)
	}
	return all
}

// source of a claim's content: the snapshot or the claim that it names.
func (p *provisioner) source(ctx context.Context, claim *core.PersistentVolumeClaim) (*csi.VolumeContentSource, error) {
	from := claim.Spec.DataSource
	if from == nil {
		return nil, nil
	}
	switch from.Kind {
	case "VolumeSnapshot":
		api := p.snapshots.SnapshotV1()
		snapshot, err := api.VolumeSnapshots(claim.Namespace).Get(ctx, from.Name, meta.GetOptions{})
		if err != nil {
			return nil, err
		}
		if snapshot.Status == nil || snapshot.Status.ReadyToUse == nil || !*snapshot.Status.ReadyToUse ||
			snapshot.Status.BoundVolumeSnapshotContentName == nil {
			return nil, fmt.Errorf("the snapshot %s is not ready", from.Name)
		}
		content, err := api.VolumeSnapshotContents().Get(ctx, *snapshot.Status.BoundVolumeSnapshotContentName, meta.GetOptions{})
		if err != nil {
			return nil, err
		}
		if content.Status == nil || content.Status.SnapshotHandle == nil {
			return nil, fmt.Errorf("the snapshot %s has no handle", from.Name)
		}
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: *content.Status.SnapshotHandle},
		}}, nil
	case "PersistentVolumeClaim":
		origin, err := p.kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, from.Name, meta.GetOptions{})
		if err != nil {
			return nil, err
		}
		volume, err := p.kube.CoreV1().PersistentVolumes().Get(ctx, origin.Spec.VolumeName, meta.GetOptions{})
		if err != nil {
			return nil, err
		}
		if volume.Spec.CSI == nil || volume.Spec.CSI.Driver != p.driver {
			return nil, fmt.Errorf("the volume of %s is not of %s", from.Name, p.driver)
		}
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: volume.Spec.CSI.VolumeHandle},
		}}, nil
	}
	return nil, fmt.Errorf("no volume is made of a %s", from.Kind)
}

// state after an answer: the volume may still come where the driver has not said that it will not.
func state(err error) controller.ProvisioningState {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.ResourceExhausted:
		return controller.ProvisioningInBackground
	}
	return controller.ProvisioningFinished
}

func (p *provisioner) Provision(ctx context.Context, options controller.ProvisionOptions) (*core.PersistentVolume, controller.ProvisioningState, error) {
	claim, class := options.PVC, options.StorageClass
	source, err := p.source(ctx, claim)
	if err != nil {
		return nil, controller.ProvisioningNoChange, err
	}
	size := claim.Spec.Resources.Requests[core.ResourceStorage]
	fsType := class.Parameters["csi.storage.k8s.io/fstype"]
	answer, err := p.volumes.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name:                options.PVName,
		CapacityRange:       &csi.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapabilities:  capabilities(claim, fsType, class.MountOptions),
		VolumeContentSource: source,
	})
	if err != nil {
		return nil, state(err), err
	}
	volume := answer.GetVolume()
	return &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: options.PVName},
		Spec: core.PersistentVolumeSpec{
			AccessModes:                   claim.Spec.AccessModes,
			MountOptions:                  class.MountOptions,
			PersistentVolumeReclaimPolicy: *class.ReclaimPolicy,
			VolumeMode:                    claim.Spec.VolumeMode,
			Capacity: core.ResourceList{
				core.ResourceStorage: *resource.NewQuantity(volume.GetCapacityBytes(), resource.BinarySI),
			},
			PersistentVolumeSource: core.PersistentVolumeSource{CSI: &core.CSIPersistentVolumeSource{
				Driver:           p.driver,
				VolumeHandle:     volume.GetVolumeId(),
				FSType:           fsType,
				VolumeAttributes: volume.GetVolumeContext(),
			}},
		},
	}, controller.ProvisioningFinished, nil
}

func (p *provisioner) Delete(ctx context.Context, volume *core.PersistentVolume) error {
	if volume.Spec.CSI == nil || volume.Spec.CSI.Driver != p.driver {
		return &controller.IgnoredError{Reason: "it is another driver's"}
	}
	_, err := p.volumes.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volume.Spec.CSI.VolumeHandle})
	return err
}

func fail(err error) {
	if err != nil {
		klog.ErrorS(err, "Failed to start")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func main() {
	klog.InitFlags(nil)
	address := flag.String("csi-address", "/run/csi/socket", "Address of the driver.")
	config := flag.String("kubeconfig", "", "Absolute path to the kubeconfig, outside of a cluster.")
	flag.Parse()
	ctx := context.Background()
	rest, err := clientcmd.BuildConfigFromFlags("", *config)
	fail(err)
	kube, err := kubernetes.NewForConfig(rest)
	fail(err)
	snapshotClient, err := snapshots.NewForConfig(rest)
	fail(err)
	connection, err := grpc.NewClient("unix:"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fail(err)
	wait := grpc.WaitForReady(true)
	name, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, wait)
	fail(err)
	p := &provisioner{
		driver:    name.GetName(),
		volumes:   csi.NewControllerClient(connection),
		kube:      kube,
		snapshots: snapshotClient,
	}
	controller.NewProvisionController(ctx, kube, p.driver, p,
		controller.LeaderElection(false),
		// A claim whose snapshot is not ready yet is tried again.
		controller.FailedProvisionThreshold(0),
	).Run(ctx)
}
